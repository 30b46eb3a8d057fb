"""Which policy to use when: first on the scoreboard's page, as Markdown; written by a person from the numbers."""

ADVICE = """\
**Start with `expected_latency`, the default.** Its mean is at most 1.14 times the best policy's, but for caches and
sessions (1.24 to 1.28), and its p99 at most 1.20 times. In the middle of all scenarios it is 5% above the
clairvoyant's mean, where `wlpr` is 20% above. Others' p99 is typically 1.3 to 2 times as long wherever workers differ.

**`learned`** is a little better still: best, or not told apart from the best, in 20 of 27 scenarios in mean and in 19
in p99. It gains most with several models on unequal GPUs, where workers fail, and in a big fleet (up to 11% in mean
and 18% in p99), and loses where requests hide their work (`azure-conversation`: p99 9% longer) and where workers join
(`autoscale`). Fourteen of these scenarios are what it was trained on; judge it by the held-out ones, on a page of
their own in docs/learned.

**Where both lose**: to `consistent_hash` where a key is cheaper on a worker that has seen it (by 18 to 22% in mean),
and to `wlpr` among rolling failures (by 7 to 14% in mean; p99 is equal).

**`wlpr`** (or `least_requests` without agents) is the simple choice: its mean is 1 to 2 times the best, its p99 1 to 4
times, most where workers differ. In these scenarios all weights are 1, so the two differ only where balancers share a
fleet. **`round_robin`** is right for equal workers and equal requests, and only there: with unequal workers its queues
grow without bound. **`consistent_hash`** elsewhere mostly costs 1.2 to 4 times. **`peak_ewma`** needs no agents; its
p99 is within 6% of the best where workers fail or slow down, but it trails by 1.1 to 2.7 times elsewhere, and by five
with three balancers, of whose other picks it knows nothing. **`power_of_two`** and **`token_bucket`** pay for what they
do not look at once workers differ. **`prequal`**, with its latency averages, gathers requests on few workers when they
are equal: its mean doubles there. **`random`** is the baseline that nobody should run.

**In overload** what counts is who is turned away: look at the share in time and at goodput in the scenario's own
section, not at the latency of those that were answered (†).
"""
