mount -t sysfs none /sys
echo 'root:x:0:' >/etc/group
echo 'profilers:x:77:' >>/etc/group

# Those that are loaded already are refused.
load() { for module in /modules/*.ko; do insmod "$module" 2>/dev/null; done; }

# expect NAME COMMAND...: a check of its own.
expect() {
    name=$1
    shift
    if "$@"; then echo "check $name: ok"; else echo "check $name: failed: $*"; fi
}

# soon COMMAND...: waits until the command succeeds. On a busy host that may take long; where it never does, the guest is ended
# for its silence.
soon() {
    tries=0
    until "$@" 2>/dev/null; do
        tries=$((tries + 1))
        [ $tries -ne 500 ] || echo "waiting until: $*"
        usleep 20000
    done
}

no_nodes() { ! ls /dev/pcs /dev/prf* 2>/dev/null; }
mode_is() { [ "$(stat -c %a:%g "/dev/$1")" = "$2" ]; }
agent() { pidof pcsd; }
no_agent() { [ -z "$(agent)" ]; }
is_held() { grep -q holding "$1"; }
opens() { true </dev/pcs; }
first_is_named() { dmesg | grep -q "pcsd: Another pcsd runs, process $(agent): "; }

# hold NAME: starts a process that waits in a read.
hold() {
    agent_life lost >/run/lost.$1 &
    holder=$!
    soon is_held /run/lost.$1
}

uname -r | sed 's/^/release /'
expect 'pcsd without its module' [ "$(pcsd --wait 0 && echo started)" = '' ]
load
expect 'pcsd starts' pcsd
expect 'nodes are there' [ -c /dev/pcs -a -c /dev/prf -a -c /dev/prf0 -a -c /dev/prf1 ]
expect 'no node for a CPU that is none' [ ! -e /dev/prf2 ]
expect 'nodes are closed to others' mode_is pcs 600:0
agent_pcs
agent_prf

# Without work there is a record a second.
while :; do :; done &
hog=$!
for size in 1 333 1000 1024 4097 200000; do
    agent_life exec dd bs=$size count=3 2>/dev/null | wc -c | sed "s/^/dd $size /"
done
kill $hog
expect 'a second pcsd says no' [ "$(pcsd && echo started)" = '' ]
expect 'it names the first one' first_is_named
expect 'the first one goes on' opens

hold killed
kill -9 "$(agent)"
wait $holder
cat /run/lost.killed
expect 'nodes go with a killed pcsd' soon no_nodes
expect 'pcsd starts again' pcsd --mode 0660 --group profilers
expect 'mode and group' mode_is pcs 660:77
expect 'mode and group of prf' mode_is prf0 660:77
expect 'a new open' opens

hold unbound
driver=/sys/bus/virtio/drivers/virtio_console
for device in "$driver"/virtio*; do device=${device##*/}; done
echo "$device" >$driver/unbind
wait $holder
cat /run/lost.unbound
expect 'opens fail without the port' [ "$(opens 2>&1)" != '' ]
echo "$device" >$driver/bind
expect 'a new open with the port back' soon opens

kill "$(agent)"
expect 'pcsd stops' soon no_agent
expect 'it leaves no node' no_nodes
rmmod cuse
rmmod virtio_console
expect 'modules go' [ -z "$(grep -e '^cuse' -e '^virtio_console' /proc/modules)" ]
load
expect 'pcsd starts with new modules' pcsd --group 77 --mode 640
expect 'an open with new modules' opens
expect 'a group by its number' mode_is pcs 640:77
agent_life exec sh -c 'echo >/run/held; exec sleep 1000' &
holder=$!
soon [ -e /run/held ]
echo 'in use by the guest'
read -r word
kill $holder
wait $holder
expect 'an open after the host has gathered' opens
echo 'free'
read -r word
expect 'an open while the host gathers' opens
dmesg | grep 'pcsd:'
echo ready
read -r word
poweroff -f
