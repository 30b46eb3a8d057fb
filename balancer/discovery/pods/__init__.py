"""Workers from the pods of a Kubernetes namespace: what a pod says, which of them are workers, and the watch."""
