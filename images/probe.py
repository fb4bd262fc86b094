#!/usr/bin/env -S python3 -I -S
"""`probe URL [CA]`: exit status 0 when the address answers 200. The health check of containers without curl.

It is run every few seconds in each container, so that it imports little.
"""

import socket
import sys

TIMEOUT_SECONDS = 5


def main() -> str | None:
    """Asks once, and returns what went wrong."""
    url, *ca = sys.argv[1:]
    _scheme, _, rest = url.partition("://")
    address, _, path = rest.partition("/")
    host, _, port = address.partition(":")
    try:
        connection = socket.create_connection((host, int(port)), TIMEOUT_SECONDS)
        if ca:
            import ssl  # noqa: PLC0415 (slow to load, and most containers are asked without)

            connection = ssl.create_default_context(cafile=ca[0]).wrap_socket(connection, server_hostname=host)
        with connection:
            connection.sendall(f"GET /{path} HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
            status = connection.makefile("rb").readline().split(b" ", 2)
    except OSError as error:
        return f"{url}: {error}"
    return None if status[1:2] == [b"200"] else f"{url}: {b' '.join(status)!r}"


if __name__ == "__main__":
    sys.exit(main())
