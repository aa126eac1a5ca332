carrier 1
features
echo "random $(head -c 32 /dev/hwrng | hexdump -v -e '1/1 "%02x"')"
echo "source $(cat /sys/class/misc/hw_random/rng_current)"

# udhcpc calls this with what it has got.
cat >/bin/lease <<'END'
#!/bin/sh
[ "$1" = bound ] || exit 0
router=${router%% *}
ip addr add "$ip/$mask" dev eth0
ip route add default via "$router" dev eth0
echo "address $ip"
echo "router $router"
echo "$router" >/run/router
END
chmod +x /bin/lease
udhcpc -i eth0 -n -q -t 20 -s /bin/lease 2>/run/udhcpc || cat /run/udhcpc
router=$(cat /run/router)
fetch fetched "http://$router:8080/file"
cp /run/fetched /run/file
until nc "$router" 9000 </run/file; do usleep 100000; done
echo "sent all"

# The peer is killed while this goes on, and comes again.
echo "fetching again"
fetch again "http://$router:8080/long" &
interrupted
wait
echo "done"
read -r _
poweroff -f
