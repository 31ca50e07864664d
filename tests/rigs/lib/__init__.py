"""What the rigs share: `check` says what was found, `daemon` runs a udpd, `net` lays cables between namespaces, `packets`
builds packets byte by byte, `load` sends, `records` reads what sinks wrote, `findings` reads `udpd explain`, and
`report` writes dated records."""
