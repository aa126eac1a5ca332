start demo --kernel /lab/demo.elf
pcsd --port "$socket" || exit 90
agent_pcs elsewhere >"$LAB_OUT/checks"
kill "$(pidof pcsd)"
until [ ! -e /dev/pcs ]; do usleep 10000; done

# kill -9 of the agent at any moment: its nodes vanish, who reads from one is told, and the next agent has them again.
kills=0
while [ "$kills" -lt "$(cat /lab/kills)" ]; do
    pcsd --port "$socket" || fail 89 "pcsd doesn't start after $kills kills"
    kvmprof getpc --all --output /run/stream 600 2>/run/reader &
    reader=$!
    usleep $((kills * 7919 % 300 * 1000))
    kill -9 "$(pidof pcsd)"
    wait $reader && fail 88 "the reader of a killed pcsd says that all is well"
    until [ ! -e /dev/pcs ]; do usleep 10000; done
    kills=$((kills + 1))
    alive "$kills kills"
done
echo "$kills" >"$LAB_OUT/kills"
cat /run/reader >"$LAB_OUT/reader"
# The guest's own devices are free again.
status freed && cp /run/freed "$LAB_OUT/freed"
kill "$machine"
ended
