// Package fake is a carrier inside one process, for tests of the layers above carriers. A
// Network plays the wires, the NICs and the memory behind them; each Transport on it is
// one device. The device counts what it holds, as a provider would, so that a leak shows
// without the help of the code under test.
//
// Order is as bad as transport.Transport allows: which request moves next is
// drawn from a seed. Manual networks do nothing until Step is called, so that
// a seed, and a schedule of calls, give the same run again; other networks
// have a goroutine that steps. Faults (Network.Inject) strike at calls, on the
// wire and at completions.
//
// Connect is that of RDMA: it does not talk to the peer. Requests to a peer
// that has not connected are retried for Config.RetryTimeout.
package fake
