"""Training and validation rows as parquet: `arithmetic`, made here, and `gsm8k`, from its hub or from its own files.

Every row has the plain columns ``prompt`` (str), ``answer`` (str) and ``data_source`` (str). The driver hands raw
columns to the agent as its payload; verl averages validation scores by ``data_source``.
"""
