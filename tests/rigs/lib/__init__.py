"""What the rigs share: `check` says what was found, `daemon` runs a udpd, `service` follows one through many processes,
`host` reads and writes files and runs commands, `net` lays cables between namespaces, `packets` builds packets byte by
byte, `load` sends, `records` reads what sinks wrote, `findings` reads `udpd explain`, `disks` and `groups` give file
systems and control groups, and `report` writes dated records. `rig.sh` is what the scripts begin with."""
