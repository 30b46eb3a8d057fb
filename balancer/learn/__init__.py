"""`balancer learn`: policies trained on a balancer's own decision log, tried with care, kept, or taken back."""
