mount -t sysfs none /sys
for module in /modules/*.ko; do insmod "$module"; done
kvmprof-tools install-links /bin
pcsd && echo 'pcsd serves'

hog_one & one=$!
dd if=/dev/zero of=/dev/null bs=64k 2>/dev/null & copy=$!
sleep 1000000 & idle=$!
echo "one is $one"
echo "copy is $copy"
echo "idle is $idle"
getpc --all --hz 80 --buffers 10 --buffer-size 65536 >/run/picture & within=$!
echo 'gathers within'
read -r word
kill $within
wait $within
echo "picture $(pcstat --json </run/picture)"
echo 'seen from within'
read -r word

setsid sh -c 'while :; do brief; done' & group=$!
until [ "$(cut -d ' ' -f 5 /proc/$group/stat)" = $group ]; do usleep 1000; done
getpc --group $group --hz 80 --buffers 10 --buffer-size 65536 >/run/group & within=$!
echo 'gathers of the group'
read -r word
kill $within
wait $within
echo "group $(pcstat --top 1000 --json </run/group)"
kill -- -$group
accounts group

while :; do cat /proc/kallsyms >/dev/null; done & reads=$!
kill $one
prfld && prfsnap log && echo 'prf counts' && read -r word && prfsnap log && echo "profile begins" && prfpr log 0.5 && echo "profile ends"
prfstat off
kill $reads
prf_cpus
echo 'all done'
poweroff -f
