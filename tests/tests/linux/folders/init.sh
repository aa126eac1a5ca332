mount -t sysfs none /sys
for module in /modules/*.ko; do insmod "$module"; done
mkdir /rw /ro
mount -t virtiofs work /rw && mount -t virtiofs other /ro && echo "both are mounted"
echo "sum $(sha256sum </rw/file | cut -d ' ' -f 1)"
echo "sum $(sha256sum </ro/file | cut -d ' ' -f 1)"
grep -E 'virtio[0-9]' /proc/interrupts | sed 's/^/interrupts /'
if [ ! -e /rw/was-here ]; then
    touch /rw/was-here
    # Once more without an orderly end of anything.
    reboot -f
fi
mkdir /rw/folder && echo "from the guest" >/rw/folder/file && mv /rw/folder/file /rw/moved && rmdir /rw/folder && echo "written"
for change in "touch /ro/new" "rm /ro/file" "chmod 777 /ro/file"; do
    $change 2>/dev/null || echo "refused: $change"
done
/rw/calls & calls=$!
# The kernel keeps what is read, until the file is opened once more: not before the program has been executed.
until [ "$(cat /proc/$calls/comm)" = calls ]; do usleep 20000; done
cat /rw/calls >/dev/null
echo "calls runs"
read -r _
kill $calls
# It holds the folder until it has gone.
wait $calls || true
umount /rw && mount -t virtiofs work /rw && echo "mounted again"
echo "may be killed"
read -r _
# It stands still: this is never answered by it.
cat /rw/file >/dev/null 2>/run/said &
asking=$!
until [ "$(cat /proc/$asking/wchan)" = request_wait_answer ]; do usleep 20000; done
echo "asks"
wait $asking
echo "asked: $(cat /run/said)"
echo "later: $(ls /rw 2>&1)"
echo "sum $(sha256sum </ro/file | cut -d ' ' -f 1)"
# The driver begins anew, and has another one.
umount /rw
cd /sys/bus/virtio/drivers/virtiofs
device=$(echo virtio* | cut -d ' ' -f 1)
echo $device >unbind && echo $device >bind && mount -t virtiofs work /rw && echo "served again"
echo "sum $(sha256sum </rw/file | cut -d ' ' -f 1)"
echo "goes on"
read -r _
