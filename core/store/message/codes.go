// Package message is what the clients and the servers of the block store say to one another,
// as bytes: requests, replies, the tables in them, and the names of namespaces. It does no
// input or output, and every reader of bytes here is made for bytes that are not trusted. The
// messages travel in a session of core/wire; docs/wire.md describes them byte by byte.
package message

import "fmt"

// Version is the format of the messages. Both sides say it in the handshake (Hello). It rises when a release takes what an older one
// says for something else.
const Version = 1

// Code is the code of a message: what is asked for. A reply has that of its request.
type Code = uint8

// The codes.
const (
	Open     Code = 0x06
	Put      Code = 0x20
	Get      Code = 0x21
	Delete   Code = 0x22
	Exists   Code = 0x23
	Touch    Code = 0x24
	Pin      Code = 0x25
	List     Code = 0x26
	Stats    Code = 0x27
	Flush    Code = 0x28
	Allocate Code = 0x29
	Write    Code = 0x2a
	Commit   Code = 0x2b
	Abort    Code = 0x2c
	Lookup   Code = 0x2d
	Read     Code = 0x2e
	Release  Code = 0x2f
	Bad      Code = 0x30 // a reader found a wrong tag
	Share    Code = 0x31 // the client wants to read where blocks lie: it may be on the same host
)

// NumCodes is how many numbers a table by code needs.
const NumCodes = int(Share) + 1

var codeNames = [NumCodes]string{
	Open: "open", Put: "put", Get: "get", Delete: "delete", Exists: "exists", Touch: "touch", Pin: "pin",
	List: "list", Stats: "stats", Flush: "flush", Allocate: "allocate", Write: "write", Commit: "commit",
	Abort: "abort", Lookup: "lookup", Read: "read", Release: "release", Bad: "bad", Share: "share",
}

// CodeName names a code; "" if there is none of that number.
func CodeName(c Code) string {
	if int(c) >= NumCodes {
		return ""
	}
	return codeNames[c]
}

// Status says how a request, or one key of it, fared.
type Status uint8

// The statuses. Those from Conflict on refuse.
const (
	OK         Status = iota // done; a hit
	Existing                 // put, commit: the same bytes are there already
	Miss                     // there is no such block
	Conflict                 // put, commit: other bytes are there, and stay
	Full                     // no room can be made
	TooLarge                 // a block that no segment holds
	Quota                    // the namespace, the connection or the table has as many as it may
	WouldBlock               // as many requests run as may
	BadTag                   // the bytes are not those of the tag
	Malformed                // a length or a field is wrong
	Unknown                  // no such code, namespace or handle
	Closing                  // the server ends
	Failed                   // the medium, or a defect
	Late                     // the deadline came first
	Denied                   // the key has no right to that
	NotCopied                // put: the block could not be copied from the bounce buffer; it may be sent
	Unreadable               // put, commit, allocate: the key has a block that the medium cannot read now, which stays
	NumStatuses
)

var statusNames = [NumStatuses]string{
	"ok", "existing", "miss", "conflict", "full", "too large", "quota", "would block", "bad tag", "malformed",
	"unknown", "closing", "failed", "late", "denied", "not copied", "unreadable",
}

// String names a status.
func (s Status) String() string {
	if s < NumStatuses {
		return statusNames[s]
	}
	return fmt.Sprintf("Status(%d)", uint8(s))
}

// Refuses reports whether a reply of that status is marked as a refusal.
func (s Status) Refuses() bool { return s >= Conflict }

// Bounds of what is said.
const (
	// MaxKeys is how many keys one request may have.
	MaxKeys = 512
	// MaxKeyBytes is how long a key may be; it has a byte at least.
	MaxKeyBytes = 512
	// MaxBlockBytes is how long a block may be, whatever a server's segments hold.
	MaxBlockBytes = 256 << 20
	// MaxBatchBytes is how many bytes the blocks of one batch may have together.
	MaxBatchBytes = 64 << 20
	// PartBytes is how much data one part of a reply has at most.
	PartBytes = 1 << 20
	// MaxPrefixBytes is how many bytes at the beginning of a payload say what the others
	// are: a table, or a key and its parent.
	MaxPrefixBytes = 16 << 10
	// MaxPayloadBytes bounds every payload.
	MaxPayloadBytes = MaxPrefixBytes + MaxBlockBytes
	// MaxTableBytes bounds a payload that is no data.
	MaxTableBytes = MaxKeys * (2 + MaxKeyBytes)
	// MaxStatsBytes bounds the reply to stats.
	MaxStatsBytes = 1 << 20
	// MaxTextBytes bounds the text of a refusal.
	MaxTextBytes = 256
)
