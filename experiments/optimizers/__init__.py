"""Which algorithm trains best: at equal decisions and at equal time, from several training seeds each."""
