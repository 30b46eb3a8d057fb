"""Who is served where: listeners, certificates, and what a peer's name allows."""
