"""The other side of the guest: starts it, shows what it says, and sends datagrams when it asks for them."""
import re
import socket
import subprocess
import sys
import threading
import time

image, initramfs, work = sys.argv[1:]
LIMIT_SECONDS = 420
GUEST, HOST = "10.9.0.2", "10.9.0.1"
# Emulated, instructions that copy byte by byte are slow, and so is every page that is cleared before anybody asks: the
# processor is said to lack the ones, and the kernel is told to leave out the other, and what guards against neighbours.
KERNEL = "console=ttyS0,115200 quiet panic=-1 net.ifnames=0 mitigations=off init_on_alloc=0"
MACHINE = f"""
-accel tcg,thread=multi -cpu max,-erms,-fsrm,-la57 -machine q35 -smp 4,sockets=2,cores=2 -m 2048
-object memory-backend-ram,id=m0,size=1024M -object memory-backend-ram,id=m1,size=1024M
-numa node,nodeid=0,cpus=0-1,memdev=m0 -numa node,nodeid=1,cpus=2-3,memdev=m1 -numa dist,src=0,dst=1,val=21
-netdev tap,id=n0,ifname=tap0,queues=4,script=no,downscript=no
-device virtio-net-pci,netdev=n0,mq=on,vectors=10,rss=on,hash=on,mac=52:54:00:00:00:02
-netdev hubport,id=n1,hubid=0 -device pxb-pcie,id=far,bus_nr=128,numa_node=1,bus=pcie.0
-device pcie-root-port,id=root1,bus=far,chassis=1 -device vmxnet3,netdev=n1,bus=root1
-kernel {image} -initrd {initramfs} -display none -no-reboot -serial stdio
-chardev socket,id=ask,path={work}/requests -serial chardev:ask
"""


def answer(requests):
    """Each line of the guest asks for datagrams: SEND flows total per_second port."""
    connection, _ = requests.accept()
    asked = connection.makefile("r")
    for line in asked:
        found = re.search(r"SEND (\d+) (\d+) (\d+) (\d+)", line)
        if not found:
            continue
        flows, total, per_second, port = map(int, found.groups())
        senders = []
        for flow in range(flows):
            sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            sender.bind((HOST, 20000 + flow))
            sender.connect((GUEST, port))
            senders.append(sender)
        begun, sent = time.monotonic(), 0
        while sent < total:
            due = min(total, int((time.monotonic() - begun) * per_second) + 1)
            while sent < due:
                try:
                    senders[sent % flows].send(b"%032d" % sent)
                    sent += 1
                except ConnectionRefusedError:
                    pass
            time.sleep(0.001)
        for sender in senders:
            sender.close()
        connection.sendall(b"SENT %d\n" % sent)


for command in (
    "ip link set lo up",
    "ip tuntap add dev tap0 mode tap multi_queue",
    f"ip address add {HOST}/24 dev tap0",
    "ip link set tap0 up",
):
    subprocess.run(command.split(), check=True)
requests = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
requests.bind(f"{work}/requests")
requests.listen(1)
threading.Thread(target=answer, args=(requests,), daemon=True).start()

arguments = MACHINE.split() + ["-append", KERNEL]
qemu = subprocess.Popen(
    ["qemu-system-x86_64", *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace"
)
timer = threading.Timer(LIMIT_SECONDS, qemu.kill)
timer.start()
result = None
try:
    for line in qemu.stdout:
        line = line.rstrip("\r\n")
        print("guest:", line, flush=True)
        found = re.search(r"RIG-RESULT (\d+) failed of (\d+)", line)
        if found:
            result = tuple(map(int, found.groups()))
finally:
    timer.cancel()
    qemu.kill()
    qemu.wait()
if result is None:
    sys.exit(f"the guest never said its result (it has {LIMIT_SECONDS} s)")
if result[0] > 0 or result[1] == 0:
    sys.exit(f"{result[0]} of {result[1]} checks failed in the guest")
