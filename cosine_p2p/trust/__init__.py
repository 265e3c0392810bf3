"""Who is believed: signed statements and outcomes of calls come in, verdicts about peers go out. No network."""
