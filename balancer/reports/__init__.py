"""Reports: the messages of agents and balancers, and who sends and gathers them."""
