# Gives guests in the lab a network. The script with this comes after jail.sh, and has a function `fail STATUS WORD...`, which ends it.

# An interface of the lab's own. passt gives guests the address and router of the interface with the default route.
ip addr add 10.0.2.15/24 dev dummy0
ip link set dummy0 up
ip route add default via 10.0.2.2
mkdir -p /run/www /run/passt
chmod 777 /run/passt

# passt makes a root folder of its own.
jailed passt /lab/passt

# start_passt: starts passt, which listens at /run/passt/socket; its process is $passt.
start_passt() {
    rm -f /run/passt/socket
    /run/jailed-passt --foreground -4 -s /run/passt/socket --runas 65534 >>"$LAB_OUT/passt.stderr" 2>&1 3>&- &
    passt=$!
    until [ -S /run/passt/socket ]; do
        [ -e "/proc/$passt/exe" ] || fail 90 "passt has ended: $(cat "$LAB_OUT/passt.stderr")"
        usleep 20000
    done
}

# make_tap: makes tap0, with the lab's address 10.9.0.1.
make_tap() {
    tunctl -t tap0
    ip addr add 10.9.0.1/24 dev tap0
    ip link set tap0 up
}
