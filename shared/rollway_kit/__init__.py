"""What every service does alike: the app with its problems, logs, settings, object store, serving."""
