"""Several gateway processes as one: `--processes N`.

A session lives in one of them, found from its id alone (`rollway_wire.placement`); nothing is shared. Its ticket's URL
names that process's port. A request that reaches another one, because one public port stands for all, is passed on
once (`forwarding`). The supervisor holds every listening socket, starts the processes again when they end, and serves
the admin routes: a session's go to its process, a pool's to all, answered as one (`front`).
"""
