date -s "2031-05-06 07:08:09" >/dev/null
start guest --kernel /lab/demo.elf --memory 64M --console none

# recorded NAME: records for five seconds, by whatever clock kvmprof has, and tells how long that took in hundredths of a second.
recorded() {
    read -r began _ </proc/uptime
    kvmprof record --socket "$socket" --output "$LAB_OUT/$1.kvmprof" --seconds 5 3>&- >/dev/null || fail 94 "the recorder failed"
    read -r now _ </proc/uptime
    echo $((${now%.*}${now#*.} - ${began%.*}${began#*.})) >"$LAB_OUT/$1.took"
    : >"/run/$1.over"
}

recorded quiet

# The date jumps by decades in both directions, and by a second.
recorded steps &
steps=0
while [ ! -e /run/steps.over ]; do
    for day in 1970-01-02 2099-12-31 2031-05-06 2000-02-29 2038-01-20; do
        date -s "$day 03:14:08" >/dev/null
        usleep 60000
        date -s "$day 03:14:07" >/dev/null
        usleep 60000
        steps=$((steps + 2))
    done
    alive "$steps steps"
    kvmprof status --socket "$socket" --json >"$LAB_OUT/steps.json" || fail 93 "the status isn't told after $steps steps"
done
wait $!
echo $steps >"$LAB_OUT/steps"
kill $machine
ended
