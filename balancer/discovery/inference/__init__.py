"""What the Gateway API Inference Extension says in a cluster: the pods of an InferencePool, and InferenceObjectives."""
