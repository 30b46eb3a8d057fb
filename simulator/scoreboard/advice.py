"""Which policy to use when: the paragraph of the scoreboard's page, as Markdown. Written by a person from the numbers."""

ADVICE = """\
"""
