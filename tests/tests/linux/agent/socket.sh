start demo --kernel /lab/demo.elf
pcsd --port "$socket" || exit 90
agent_pcs elsewhere >"$LAB_OUT/checks"
kill "$(pidof pcsd)" "$machine"
ended
