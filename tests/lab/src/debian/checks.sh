# Checks on the Debian system itself, run as root at its console. Argument: the lab machine's address.
set -e
host=$1
echo "system $(. /etc/os-release; echo "$PRETTY_NAME"), $(uname -r), $(systemctl is-system-running)"
echo "root $(findmnt --noheadings --output FSTYPE,SOURCE /)"
echo "address $(ip -4 -brief addr show scope global)"

wget -q -O /root/file "http://$host:8080/file"
sync
echo 3 >/proc/sys/vm/drop_caches
echo "fetched $(sha256sum </root/file | cut -d ' ' -f 1)"
rm /root/file
echo "received $(nstat --zeros --noupdate TcpInSegs TcpInErrs TcpInCsumErrors TcpExtTCPOFOQueue TcpExtTCPDSACKOldSent |
    sed -n 's/^\(Tcp[^ ]*\) *\([0-9]*\) .*/\1 \2/p' | tr '\n' ' ')"

mount -t virtiofs shared /mnt
cp /mnt/there /mnt/back
umount /mnt
echo 'shared folder used'

# The host counts requests before and after this.
echo 'fio waits'
read -r _
# Verified random writes: fio reads each block back and compares its checksum.
fio --name=verified --directory=/root --size=16m --bs=4k --rw=randwrite --ioengine=libaio --iodepth=8 --direct=1 \
    --verify=crc32c --verify_fatal=1 --do_verify=1 --fsync=64 --eta=never --output=/root/fio.json --output-format=json
echo "verified $(grep -o '"total_err" : [0-9]*\|"error" : [0-9]*' /root/fio.json | sort -u | tr '\n' ' ')"
rm /root/verified*
echo 'fio is done'
echo "failed units: $(systemctl --failed --plain --no-legend | tr '\n' ' ')"
grep -E 'virtio[0-9]' /proc/interrupts | sed 's/  */ /g; s/^/interrupts /'
echo "checks passed"
