"""The chart's HorizontalPodAutoscaler over simulated fleets: does what it scales on follow the offered load?"""
