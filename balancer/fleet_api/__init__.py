"""Calls that concern the fleet and not one worker: asked of the workers, and answered as one Triton would."""
