"""Queueing theory that is exact: `rate` arrivals a second (Poisson unless said), services of mean `service_s`.

Harchol-Balter: Performance Modeling and Design of Computer Systems, Cambridge 2013.
"""

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
from scipy.optimize import brentq
from scipy.sparse import coo_matrix
from scipy.sparse.linalg import spsolve
from scipy.stats import poisson


def mm1_sojourn_s(rate: float, service_s: float) -> float:
    """M/M/1, mean time in the system; the whole time is exponential with this mean. Harchol-Balter, chapter 13."""
    return 1 / (1 / service_s - rate)


def mg1_wait_s(rate: float, service_s: float, cv: float) -> float:
    """M/G/1, mean time in the queue, of the service's coefficient of variation: Pollaczek-Khinchine. Chapter 23."""
    load = rate * service_s
    return load / (1 - load) * service_s * (1 + cv * cv) / 2


def erlang_b(offered: float, servers: int) -> float:
    """M/G/k/k, share of requests lost with `offered` = rate * service_s. Erlang 1917; Harchol-Balter, chapter 14."""
    lost = 1.0
    for k in range(1, servers + 1):
        lost = offered * lost / (k + offered * lost)
    return lost


def erlang_c(offered: float, servers: int) -> float:
    """M/M/k, share of requests that wait. Erlang 1917; Harchol-Balter, chapter 14."""
    lost = erlang_b(offered, servers)
    return servers * lost / (servers - offered * (1 - lost))


def mmk_wait_s(rate: float, service_s: float, servers: int) -> float:
    """M/M/k with one queue, mean time in it. Harchol-Balter, chapter 14."""
    return erlang_c(rate * service_s, servers) / (servers / service_s - rate)


def mmk_busy_share(rate: float, service_s: float, servers: int) -> float:
    """M/M/k: share of the time in which somebody is served, by the birth-death chain. Harchol-Balter, chapter 14."""
    offered = rate * service_s
    below = sum(offered**k / math.factorial(k) for k in range(servers))
    above = offered**servers / math.factorial(servers) / (1 - offered / servers)
    return 1 - 1 / (below + above)


def priority_waits_s(rates: tuple[float, ...], service_s: float, cv: float) -> list[float]:
    """M/G/1 with priorities that do not preempt, mean wait of each level, the first goes first. Cobham 1954."""
    begun_s = sum(rates) * service_s**2 * (1 + cv * cv) / 2
    loads = np.cumsum((0.0, *rates)) * service_s
    return [begun_s / ((1 - before) * (1 - with_own)) for before, with_own in pairwise(loads)]


def round_robin_sojourn_s(rate: float, service_s: float, servers: int) -> float:
    """Round robin over exponential servers: each is an Erlang-n/M/1. Kleinrock, Queueing Systems I, 1975, chapter 6.

    An arrival finds k there with probability `(1 - s) s^k`, where s solves `s = A((1 - s) / service_s)` and A is the
    Laplace transform of the time between two arrivals.
    """

    def excess(s: float) -> float:
        return float((rate / (rate + (1 - s) / service_s)) ** servers - s)

    return service_s / (1 - float(brentq(excess, 0, 1 - 1e-6)))


def power_of_two_sojourn_s(rate_per_server: float, service_s: float) -> float:
    """The shorter of two queues drawn from infinitely many, mean time in the system.

    Of the servers, a share `load^(2^i - 1)` have at least i requests, and a request finds i at both with the square of
    it; so its mean time is the sum over i >= 1 of `load^(2^i - 2)`, in service times. Vvedenskaya, Dobrushin,
    Karpelevich 1996; Mitzenmacher 2001, section 3, with d = 2.
    """
    load = rate_per_server * service_s
    return service_s * math.fsum(load ** (2**i - 2) for i in range(1, 20))


def shorter_of_two_queues_sojourn_s(rate: float, service_s: float, longest: int = 60) -> float:
    """Join the shortest of two queues, mean time in the system: its Markov chain solved, cut off at `longest`."""
    n = longest + 1
    first, second = (axis.ravel() for axis in np.meshgrid(np.arange(n), np.arange(n), indexing="ij"))
    joins_first = np.select([first < second, first > second], [1.0, 0.0], 0.5)
    moves = [
        ((first + 1) * n + second, rate * joins_first * (first < longest)),
        (first * n + second + 1, rate * (1 - joins_first) * (second < longest)),
        ((first - 1) * n + second, (first > 0) / service_s),
        (first * n + second - 1, (second > 0) / service_s),
    ]
    here, there, rates = [], [], []
    for target, per_s in moves:
        moving = per_s > 0
        here += [np.flatnonzero(moving)] * 2
        there += [target[moving], np.flatnonzero(moving)]
        rates += [per_s[moving], -per_s[moving]]
    balance = coo_matrix((np.concatenate(rates), (np.concatenate(there), np.concatenate(here)))).tolil()
    balance[0] = 1.0  # one equation of the balance follows from the others: the shares sum to 1
    share = spsolve(balance.tocsr(), np.eye(1, n * n)[0])
    return float(share @ (first + second)) / rate


def batching_sojourn_s(rate: float, batch_s: Callable[[int], float], most: int, longest: int = 400) -> float:
    """Poisson arrivals to a server that takes all that waits, at most `most`; a batch of b takes `batch_s(b)` exactly.

    Embedded Markov chain of what is left in the queue when a batch ends (Bailey 1954), with services by batch size;
    the mean number in the system then follows from a cycle's mean area over its mean length, and the time from Little.
    """
    left = np.arange(longest)
    waiting = np.maximum(left, 1)  # an empty server starts with the next arrival alone
    size = np.minimum(waiting, most)
    took_s = np.array([batch_s(int(b)) for b in size])
    arrived = left[None, :] - (waiting - size)[:, None]
    chain = poisson.pmf(arrived, rate * took_s[:, None])
    balance = chain.T - np.eye(longest)
    balance[0] = 1.0
    share = np.linalg.solve(balance, np.eye(1, longest)[0])
    area = waiting * took_s + rate * took_s**2 / 2
    length_s = took_s + (left == 0) / rate
    return float(share @ area / (share @ length_s)) / rate


def closed_sojourn_s(clients: int, think_s: float, service_s: float) -> float:
    """Clients who think, then wait for one exponential server: mean time at it. Mean value analysis, Reiser 1980.

    Exact for thinking times of any distribution (Baskett, Chandy, Muntz, Palacios 1975).
    """
    sojourn_s, queue = service_s, 0.0
    for n in range(1, clients + 1):
        sojourn_s = service_s * (1 + queue)
        queue = n / (think_s + sojourn_s) * sojourn_s
    return sojourn_s
