"""The learned policy (see README.md): what it sees, its network, the file that holds it."""

from policies.learned.policy import Learned

__all__ = ["Learned"]
