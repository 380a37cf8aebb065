package fabric_test

import (
	"fmt"
	"log"
	"net/netip"
	"sync"
	"time"

	"github.com/moewire/moewire/core/endpoint"
	"github.com/moewire/moewire/core/fabric"
	"github.com/moewire/moewire/core/transport/tcp"
	"github.com/moewire/moewire/core/wire"
)

// Two fabrics, peers 0 and 1 of each other. Peer 0 sends a message to peer 1.
func Example() {
	keys := wire.GenerateKeyring() // the same at both ends
	fabrics := [2]*fabric.Fabric{openExample(keys), openExample(keys)}
	var carriers sync.WaitGroup
	for from := range fabrics {
		carriers.Go(func() { carryHandshakes(fabrics, from) })
	}

	deadline := time.Now().Add(time.Minute)
	check(fabrics[0].Connect(1, deadline)) // both may post once both are connected
	check(fabrics[1].Connect(0, deadline))

	in := make([]byte, 64)
	inRegion, err := fabrics[1].Register(in, 0)
	check(err)
	received, err := fabrics[1].Post(&fabric.Request{Kind: fabric.Recv, Peer: 0, Region: inRegion, Bytes: 64})
	check(err)

	out := []byte("a block")
	outRegion, err := fabrics[0].Register(out, 0)
	check(err)
	sent, err := fabrics[0].Post(&fabric.Request{Kind: fabric.Send, Peer: 1, Region: outRegion, Bytes: int64(len(out))})
	check(err)

	message, err := fabrics[1].Wait(received, deadline)
	check(err)
	fmt.Printf("%d bytes received: %s\n", message.NumBytes, in[:message.NumBytes])
	_, err = fabrics[0].WaitReleased(sent, deadline) // its memory is free again
	check(err)

	for _, f := range fabrics {
		check(f.Close(deadline))
	}
	carriers.Wait()
	// Output: 7 bytes received: a block
}

func openExample(keys *wire.Keyring) *fabric.Fabric {
	carrier, err := tcp.Open(tcp.Config{Keyring: keys, Listen: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:0")}})
	check(err)
	f, err := fabric.Open(fabric.Config{Transport: carrier, Mode: fabric.Messages})
	check(err)
	return f
}

// carryHandshakes brings one fabric's handshakes to the other, until it is closed. In two
// processes a store, a socket or a file does this.
func carryHandshakes(fabrics [2]*fabric.Fabric, from int) {
	handshake := make([]byte, fabric.MaxHandshakeBytes)
	for {
		to, n, ok, err := fabrics[from].Next(handshake, time.Now().Add(time.Second))
		if err != nil {
			return // closed
		}
		if ok {
			_ = fabrics[to].Deliver(endpoint.Peer(from), handshake[:n]) // a lost one is given again
		}
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
