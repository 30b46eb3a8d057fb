"""Objects of a Kubernetes namespace: the API, and a watch of all objects of one kind."""
