from balancer.agent.batch_totals import BatchTotals

KEY = ("m", "1")


def test_statistics_are_passed_on() -> None:
    totals = BatchTotals()
    assert totals.of(KEY) == ()
    totals.update(KEY, ((1, 2, 0.5),))
    totals.update(KEY, ((1, 3, 0.75), (4, 1, 1.0)))
    assert totals.of(KEY) == ((1, 3, 0.75), (4, 1, 1.0))
    assert totals.of(("m", "2")) == ()


def test_a_model_loaded_anew_adds_to_what_it_was() -> None:
    totals = BatchTotals()
    totals.update(KEY, ((1, 3, 0.75), (4, 1, 1.0)))
    totals.ended(KEY)
    assert totals.of(KEY) == ((1, 3, 0.75), (4, 1, 1.0))
    totals.update(KEY, ())
    assert totals.of(KEY) == ((1, 3, 0.75), (4, 1, 1.0))
    # As many as before, which by themselves would look like no change.
    totals.update(KEY, ((1, 3, 0.25), (2, 1, 0.5)))
    assert totals.of(KEY) == ((1, 6, 1.0), (2, 1, 0.5), (4, 1, 1.0))


def test_an_unload_that_was_not_noticed_shows_in_lower_numbers() -> None:
    totals = BatchTotals()
    totals.update(KEY, ((1, 3, 0.75),))
    totals.update(KEY, ((2, 1, 0.5),))
    totals.update(KEY, ((2, 2, 1.0),))
    assert totals.of(KEY) == ((1, 3, 0.75), (2, 2, 1.0))


def test_ending_twice_counts_once() -> None:
    totals = BatchTotals()
    totals.update(KEY, ((1, 3, 0.75),))
    totals.ended(KEY)
    totals.ended(KEY)
    totals.update(KEY, ((1, 1, 0.25),))
    assert totals.of(KEY) == ((1, 4, 1.0),)


def test_a_new_triton_begins_at_zero() -> None:
    totals = BatchTotals()
    totals.update(KEY, ((1, 3, 0.75),))
    totals.ended(KEY)
    totals.clear()
    totals.update(KEY, ((1, 1, 0.25),))
    assert totals.of(KEY) == ((1, 1, 0.25),)
