"""How a service process says where it listens, and how it is asked whether it is well."""

from __future__ import annotations

import http.client
import json
from urllib.parse import urlsplit


def listening_url(log: str, name: str = "url") -> str:
    """The url of the JSON log line whose event is ``listening``; '' when there is none yet, or none of this name."""
    for line in log.splitlines():
        if '"listening"' not in line:
            continue
        try:
            event = json.loads(line)
        except ValueError:
            continue  # half written, or another line that holds the word
        if isinstance(event, dict) and event.get("event") == "listening":
            return str(event.get(name, ""))
    return ""


def answers(url: str, path: str, timeout_s: float = 5.0) -> bool:
    """True when ``GET url/path`` is answered with 200; blocks for at most ``timeout_s``."""
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
