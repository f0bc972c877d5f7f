"""The algorithms that connections ask for, in their order, and how ssh_config changes them."""

from collections.abc import Sequence

from ipexctl.act.ssh.hostkeys import matches_patterns

# The first of each that the host has too is taken. Measured: curve25519 and AES-GCM cost a fraction of the defaults.
KEX = ("curve25519-sha256@libssh.org", "curve25519-sha256", "ecdh-sha2-nistp256")
CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes192-ctr", "aes256-ctr")
HOST_KEYS = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521")
RSA = ("rsa-sha2-512", "rsa-sha2-256")
MACS = (
    "hmac-sha2-256-etm@openssh.com",
    "hmac-sha2-512-etm@openssh.com",
    "hmac-sha2-256",
    "hmac-sha2-512",
    "hmac-sha1",
)


def change_algorithms(names: Sequence[str], value: str) -> list[str]:
    """``names`` as a value of ssh_config changes them: ``+`` adds some, ``^`` puts them first, ``-`` removes those that
    match its patterns, and a value without such a sign replaces them."""
    sign, listed = value[0], [name for name in value.lstrip("+-^").split(",") if name]
    if sign == "-":
        return [name for name in names if not matches_patterns(name, listed)]
    return list(dict.fromkeys({"+": [*names, *listed], "^": [*listed, *names]}.get(sign, listed)))
