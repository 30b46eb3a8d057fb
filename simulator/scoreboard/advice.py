"""Which policy to use when: first on the scoreboard's page, as Markdown; written by a person from the numbers."""

ADVICE = """\
**Start with `expected_latency`.** It is the best, or not told apart from the best, in mean latency in 17 of 27
scenarios and in p99 in 22: wherever workers differ, models are mixed, load comes in bursts, or several balancers
share a fleet. Where it wins, the others' p99 is typically 1.3 to 2 times as long.

**It loses, and you should know where.** With a big fleet behind several balancers its mean is 1.8 times that of
`wlpr` (its p99 is the best). With heavy-tailed requests its mean is 1.2 to 1.3 times that of `wlpr` or
`least_requests`, again with the better p99. With equal workers and steady load it is 1.13 times in mean and 1.26
times in p99 behind the plain ones: there is nothing to learn about equal workers, and what it learns is noise. Among
crashes and silent agents it is up to 1.35 times behind.

**`wlpr`** (or `least_requests` without agents) is the simple choice that is rarely bad: never more than 1.7 times the
best mean, but its p99 is 1.1 to 2.4 times the best where workers differ. In these scenarios all weights are 1, so the
two differ only where balancers share a fleet. **`round_robin`** is right for equal workers and equal requests, and
only there: with unequal workers its queues grow without bound. **`consistent_hash`** is for caches and sessions:
where a key is cheaper on a worker that has seen it, it has the best mean by 16 to 30%; elsewhere it mostly costs 1.2
to 3 times. **`peak_ewma`** needs no agents and handles failing and slowed workers well (best p99 in two such
scenarios), but trails by 1.1 to 2 times elsewhere, and by five with three balancers, of whose other picks it knows
nothing. **`power_of_two`** and **`token_bucket`** pay for what they do not look at once workers differ.
**`prequal`**, with its latency averages, gathers requests on few workers when they are equal: its mean doubles there.
**`random`** is the baseline that nobody should run.

**In overload** what counts is who is turned away: look at the share in time and at goodput in the scenario's own
section, not at the latency of those that were answered (†).
"""
