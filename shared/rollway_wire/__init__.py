"""What crosses a process boundary in Rollway: ids, S3 keys, request and result types, tokens, problems.

No I/O, no service knowledge. Every service imports this package and none imports another service.
Types are frozen; lengths that must agree are proven when a value is made; absent evidence is an error.
"""
