package libcuda

import "unsafe"

// BeginCapture makes a stream record what it is given into a graph.
func (l *Library) BeginCapture(s Stream, mode int) error {
	return l.check("cuStreamBeginCapture_v2", l.call.streamBeginCapture.Call(uintptr(s), uintptr(mode)))
}

// EndCapture ends that, and returns the graph.
func (l *Library) EndCapture(s Stream) (Graph, error) {
	g := new(Graph)
	r := l.call.streamEndCapture.Call(uintptr(s), uintptr(unsafe.Pointer(g)))
	return *g, l.check("cuStreamEndCapture", r)
}

// GraphInstantiate makes a graph launchable.
func (l *Library) GraphInstantiate(g Graph) (GraphExec, error) {
	e := new(GraphExec)
	r := l.call.graphInstantiateWithFlags.Call(uintptr(unsafe.Pointer(e)), uintptr(g), 0)
	return *e, l.check("cuGraphInstantiateWithFlags", r)
}

// GraphLaunch runs a graph on a stream.
func (l *Library) GraphLaunch(e GraphExec, s Stream) error {
	return l.check("cuGraphLaunch", l.call.graphLaunch.Call(uintptr(e), uintptr(s)))
}

// GraphExecDestroy ends a launchable graph.
func (l *Library) GraphExecDestroy(e GraphExec) error {
	return l.check("cuGraphExecDestroy", l.call.graphExecDestroy.Call(uintptr(e)))
}

// GraphDestroy ends a graph.
func (l *Library) GraphDestroy(g Graph) error {
	return l.check("cuGraphDestroy", l.call.graphDestroy.Call(uintptr(g)))
}
