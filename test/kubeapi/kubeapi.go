// SPDX-License-Identifier: Apache-2.0

// Package kubeapi is a small Kubernetes API server for tests. It keeps objects, records
// each write, and answers with errors on demand.
package kubeapi // import "github.com/gpu-collector/gpu-collector/test/kubeapi"

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// Server is the API server.
type Server struct {
	*httptest.Server
	mu      sync.Mutex
	objects map[string]map[string]any // by path
	version int
	writes  []string
	// Fail says with which status a request is answered, 0 for the usual answer. Budget
	// says that a disruption budget holds a pod.
	fail   func(method, path string) int
	watch  func(method, path, body string)
	budget map[string]bool
	// served are the resources that discovery and lists know, by GROUP/VERSION.
	served map[string]map[string]string
}

// New starts a server, until the test ends.
func New(t testing.TB) *Server {
	s := &Server{objects: map[string]map[string]any{}, budget: map[string]bool{}, served: map[string]map[string]string{}}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

// Kubeconfig is a file that leads to the server.
func (s *Server) Kubeconfig(t testing.TB) string {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","clusters":[{"name":"c","cluster":{"server":%q}}],"users":[{"name":"u","user":{}}],"contexts":[{"name":"x","context":{"cluster":"c","user":"u"}}],"current-context":"x"}`, s.URL)
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

// Put adds or replaces an object, such as one at /api/v1/nodes/a.
func (s *Server) Put(t testing.TB, path string, object any) {
	data, err := json.Marshal(object)
	require.NoError(t, err)
	var m map[string]any
	require.NoError(t, json.Unmarshal(data, &m))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(path, m)
}

// Node adds a node.
func (s *Server) Node(t testing.TB, name string) {
	s.Put(t, "/api/v1/nodes/"+name, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid-" + "x"}})
}

// Pod adds a pod that runs on a node; budget holds it there.
func (s *Server) Pod(t testing.TB, node, name string, budget bool, change func(*corev1.Pod)) {
	p := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "jobs", UID: "uid-pod"}, Spec: corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	if change != nil {
		change(&p)
	}
	path := "/api/v1/namespaces/jobs/pods/" + name
	s.Put(t, path, p)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.budget[path] = budget
}

// Budget says whether a disruption budget holds a pod.
func (s *Server) Budget(name string, holds bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.budget["/api/v1/namespaces/jobs/pods/"+name] = holds
}

// Fail says with which status a request is answered, 0 for the usual answer.
func (s *Server) Fail(f func(method, path string) int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = f
}

// Watch sees each request before it is answered.
func (s *Server) Watch(f func(method, path, body string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watch = f
}

// Serve has discovery tell of a resource, such as resource.k8s.io/v1 and resourceslices of
// the kind ResourceSlice. Objects of it can be listed then.
func (s *Server) Serve(groupVersion, resource, kind string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.served[groupVersion] == nil {
		s.served[groupVersion] = map[string]string{}
	}
	s.served[groupVersion][resource] = kind
}

// Remove takes an object away.
func (s *Server) Remove(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.objects, path)
}

// Get decodes an object, and reports whether it is there.
func (s *Server) Get(t testing.TB, path string, into any) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, ok := s.objects[path]
	if ok {
		data, err := json.Marshal(m)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(data, into))
	}
	return ok
}

// Writes are the writes that took effect, each as METHOD path, but for those of Leases.
func (s *Server) Writes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.writes...)
}

func (s *Server) put(path string, m map[string]any) {
	s.version++
	metadata, _ := m["metadata"].(map[string]any)
	if metadata == nil {
		metadata = map[string]any{}
		m["metadata"] = metadata
	}
	metadata["resourceVersion"] = strconv.Itoa(s.version)
	s.objects[path] = m
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	if s.watch != nil {
		s.watch(r.Method, r.URL.Path, string(body))
	}
	if s.fail != nil {
		if code := s.fail(r.Method, r.URL.Path); code != 0 {
			status(w, code, "on demand")
			return
		}
	}
	path := r.URL.Path
	switch r.Method {
	case http.MethodGet:
		s.get(w, r, path)
		return
	case http.MethodPost:
		path = s.post(w, path, body)
	case http.MethodPut:
		path = s.update(w, path, body)
	case http.MethodPatch:
		path = s.patch(w, r, path, body)
	case http.MethodDelete:
		path = s.remove(w, path, body)
	default:
		status(w, http.StatusMethodNotAllowed, r.Method)
	}
	if path != "" && !strings.Contains(path, "/leases") {
		s.writes = append(s.writes, r.Method+" "+path)
	}
}

func (s *Server) get(w http.ResponseWriter, r *http.Request, path string) {
	if m, ok := s.objects[path]; ok {
		reply(w, m)
		return
	}
	if group, ok := strings.CutPrefix(path, "/apis/"); ok && s.served[group] != nil {
		s.discover(w, group)
		return
	}
	parent, plural := path[:strings.LastIndex(path, "/")], path[strings.LastIndex(path, "/")+1:]
	version, kind := s.kind(parent, plural)
	if kind == "" {
		status(w, http.StatusNotFound, path)
		return
	}
	under := "/" + plural + "/" // of all namespaces
	if strings.Contains(parent, "/namespaces/") {
		under = path + "/"
	}
	selector, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil {
		status(w, http.StatusBadRequest, err.Error())
		return
	}
	items := []any{}
	for p, m := range s.objects {
		if strings.Contains(p, under) && matches(m, r.URL.Query().Get("fieldSelector")) && selector.Matches(labelsOf(m)) {
			items = append(items, m)
		}
	}
	reply(w, map[string]any{"apiVersion": version, "kind": kind + "List", "metadata": map[string]any{}, "items": items})
}

// kind of the objects at PARENT/PLURAL, empty for one that is not served.
func (s *Server) kind(parent, plural string) (version, kind string) {
	switch plural {
	case "nodes":
		return "v1", "Node"
	case "pods":
		return "v1", "Pod"
	}
	version, _, _ = strings.Cut(strings.TrimPrefix(parent, "/apis/"), "/namespaces/")
	return version, s.served[version][plural]
}

func (s *Server) discover(w http.ResponseWriter, groupVersion string) {
	list := []any{}
	for plural, kind := range s.served[groupVersion] {
		list = append(list, map[string]any{"name": plural, "kind": kind, "namespaced": false, "verbs": []string{"create", "delete", "get", "list"}})
	}
	reply(w, map[string]any{"apiVersion": "v1", "kind": "APIResourceList", "groupVersion": groupVersion, "resources": list})
}

func labelsOf(m map[string]any) labels.Set {
	set := labels.Set{}
	metadata, _ := m["metadata"].(map[string]any)
	of, _ := metadata["labels"].(map[string]any)
	for k, v := range of {
		set[k], _ = v.(string)
	}
	return set
}

func matches(m map[string]any, selector string) bool {
	want, ok := strings.CutPrefix(selector, "spec.nodeName=")
	if !ok {
		return true
	}
	spec, _ := m["spec"].(map[string]any)
	return spec["nodeName"] == want
}

// current reports whether an object is there and of the version that a writer has read.
func (s *Server) current(w http.ResponseWriter, path, version string) bool {
	was, ok := s.objects[path]
	if !ok {
		status(w, http.StatusNotFound, path)
		return false
	}
	if metadata, _ := was["metadata"].(map[string]any); version != "" && version != metadata["resourceVersion"] {
		status(w, http.StatusConflict, "the object has been modified")
		return false
	}
	return true
}

func (s *Server) update(w http.ResponseWriter, path string, body []byte) string {
	var read struct{ Metadata metav1.ObjectMeta }
	var m map[string]any
	_, _ = json.Unmarshal(body, &read), json.Unmarshal(body, &m)
	if !s.current(w, path, read.Metadata.ResourceVersion) {
		return ""
	}
	s.put(path, m)
	reply(w, m)
	return path
}

func (s *Server) remove(w http.ResponseWriter, path string, body []byte) string {
	var options metav1.DeleteOptions
	_ = json.Unmarshal(body, &options)
	version := ""
	if p := options.Preconditions; p != nil && p.ResourceVersion != nil {
		version = *p.ResourceVersion
	}
	if !s.current(w, path, version) {
		return ""
	}
	delete(s.objects, path)
	reply(w, map[string]any{"apiVersion": "v1", "kind": "Status", "status": "Success"})
	return path
}

func (s *Server) post(w http.ResponseWriter, path string, body []byte) string {
	if pod, ok := strings.CutSuffix(path, "/eviction"); ok {
		switch {
		case s.objects[pod] == nil:
			status(w, http.StatusNotFound, pod)
			return ""
		case s.budget[pod]:
			status(w, http.StatusTooManyRequests, "Cannot evict pod as it would violate the pod's disruption budget.")
			return ""
		}
		delete(s.objects, pod)
		reply(w, map[string]any{"apiVersion": "v1", "kind": "Status", "status": "Success"})
		return path
	}
	var m map[string]any
	_ = json.Unmarshal(body, &m)
	metadata, _ := m["metadata"].(map[string]any)
	name, _ := metadata["name"].(string)
	if s.objects[path+"/"+name] != nil {
		statusReason(w, http.StatusConflict, metav1.StatusReasonAlreadyExists, name)
		return ""
	}
	s.put(path+"/"+name, m)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(m)
	return path + "/" + name
}

func (s *Server) patch(w http.ResponseWriter, r *http.Request, path string, body []byte) string {
	object := strings.TrimSuffix(path, "/status")
	var patch struct{ Metadata metav1.ObjectMeta }
	_ = json.Unmarshal(body, &patch)
	if !s.current(w, object, patch.Metadata.ResourceVersion) {
		return ""
	}
	old, _ := json.Marshal(s.objects[object])
	var now []byte
	var err error
	if strings.Contains(r.Header.Get("Content-Type"), "strategic") {
		now, err = strategicpatch.StrategicMergePatch(old, body, corev1.Node{})
	} else {
		now, err = jsonpatch.MergePatch(old, body)
	}
	var m map[string]any
	if err == nil {
		err = json.Unmarshal(now, &m)
	}
	if err != nil {
		status(w, http.StatusBadRequest, err.Error())
		return ""
	}
	s.put(object, m)
	reply(w, m)
	return path
}

func reply(w http.ResponseWriter, m map[string]any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(m)
}

var reasons = map[int]metav1.StatusReason{
	http.StatusNotFound: metav1.StatusReasonNotFound, http.StatusConflict: metav1.StatusReasonConflict,
	http.StatusTooManyRequests: metav1.StatusReasonTooManyRequests, http.StatusInternalServerError: metav1.StatusReasonInternalError,
}

func status(w http.ResponseWriter, code int, message string) {
	statusReason(w, code, reasons[code], message)
}

func statusReason(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message,
	})
}
