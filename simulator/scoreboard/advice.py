"""Which policy to use when: first on the scoreboard's page, as Markdown; written by a person from the numbers."""

ADVICE = ""
