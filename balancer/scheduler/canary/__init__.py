"""Who decides where it is not always the policy in force: guard, shadow, rollout, switchback, and their evidence."""
