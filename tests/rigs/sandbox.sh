#!/usr/bin/env bash
# The sandbox of udpd, as far as testing it takes root: interfaces that go and come back under a daemon that has given
# up its rights, low ports that its helper process binds again and that nothing binds without it, an ordinary user, and
# kernels that lack a part. Each engine. Then what code in a thread could do: each way out, tried in each thread of a
# running daemon. Nothing outside of a network namespace of its own is touched.
. "$(dirname "$0")/lib/rig.sh"
need python3 setpriv:util-linux strace
enter_namespaces
python_part
