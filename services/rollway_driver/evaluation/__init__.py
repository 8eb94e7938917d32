"""``rollway eval``: an agent on a data set, n times each, resumable, scored by pass@k. Needs the extra ``local``."""
