package libnvrtc

import (
	"runtime"
	"unsafe"
)

// cStrings keeps strings in place while C reads them.
type cStrings struct{ pin runtime.Pinner }

func (s *cStrings) one(text string) uintptr {
	c := append([]byte(text), 0)
	s.pin.Pin(&c[0])
	return uintptr(unsafe.Pointer(&c[0]))
}

// array is the address of an array of strings; 0 for none.
func (s *cStrings) array(texts []string) uintptr {
	if len(texts) == 0 {
		return 0
	}
	list := make([]uintptr, len(texts))
	for i, text := range texts {
		list[i] = s.one(text)
	}
	s.pin.Pin(&list[0])
	return uintptr(unsafe.Pointer(&list[0]))
}

func (s *cStrings) free() { s.pin.Unpin() }
