"""What each part of the learned policy is worth: trained without it, and judged on equal episodes."""
