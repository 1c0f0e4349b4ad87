"""This machine's addresses in a network."""

from __future__ import annotations

import ipaddress

import psutil

from malletrain.errors import UsageError


def own_address(subnet: str) -> tuple[str, str]:
    """Return the interface and the address that this machine has in a network as 10.1.0.0/16.

    Raises:
        UsageError: that is no network, or this machine is not in it.
    """
    try:
        network = ipaddress.ip_network(subnet, strict=False)
    except ValueError:
        raise UsageError(f"{subnet!r} is no network: write it as 10.1.0.0/16") from None
    found = []
    for interface, addresses in psutil.net_if_addrs().items():
        for address in addresses:
            text = address.address.partition("%")[0]
            try:
                ip = ipaddress.ip_address(text)
            except ValueError:
                continue  # a hardware address
            if ip in network:
                return interface, text
            found.append(f"{interface} {text}")
    raise UsageError(f"this machine has no address in {subnet}: it has {', '.join(sorted(found))}")
