// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"fmt"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

const defaultLibrary = "libnvidia-ml.so.1"

// function is a C function of NVML that this package may call. go-nvml is
// linked with unresolved symbols: a call of a symbol that the driver does not have ends
// the process. So go-nvml's methods are reached through guarded only, which looks
// the symbol up first. The linter forbidigo finds calls that go around it.
type function int

// functions has, for each function, go-nvml's method and its C symbols. The method
// calls the newest symbol that is there: one of them suffices. A row may stand
// beside the reader that calls it.
var functions []entry

type entry struct {
	method  string
	symbols []string
}

func enter(method string, symbols ...string) function {
	functions = append(functions, entry{method, symbols})
	return function(len(functions) - 1)
}

// ofDevice enters a method of a device with the one C function that has its name.
func ofDevice(method string) function { return enter(method, "nvmlDevice"+method) }

var (
	fnInit              = enter("Init", "nvmlInit_v2", "nvmlInit")
	fnShutdown          = enter("Shutdown", "nvmlShutdown")
	fnDriverVersion     = enter("SystemGetDriverVersion", "nvmlSystemGetDriverVersion")
	fnCUDAVersion       = enter("SystemGetCudaDriverVersion", "nvmlSystemGetCudaDriverVersion")
	fnDeviceCount       = enter("DeviceGetCount", "nvmlDeviceGetCount_v2", "nvmlDeviceGetCount")
	fnDeviceByIndex     = enter("DeviceGetHandleByIndex", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex")
	fnUUID              = ofDevice("GetUUID")
	fnName              = ofDevice("GetName")
	fnSerial            = ofDevice("GetSerial")
	fnPCIInfo           = enter("GetPciInfo", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo")
	fnMinor             = ofDevice("GetMinorNumber")
	fnVBIOS             = ofDevice("GetVbiosVersion")
	fnMemoryV2          = ofDevice("GetMemoryInfo_v2")
	fnMemory            = ofDevice("GetMemoryInfo")
	fnUtilization       = ofDevice("GetUtilizationRates")
	fnEncoder           = ofDevice("GetEncoderUtilization")
	fnDecoder           = ofDevice("GetDecoderUtilization")
	fnTemperatureV      = ofDevice("GetTemperatureV")
	fnTemperature       = ofDevice("GetTemperature")
	fnFieldValues       = ofDevice("GetFieldValues")
	fnPower             = ofDevice("GetPowerUsage")
	fnPowerLimit        = ofDevice("GetEnforcedPowerLimit")
	fnPowerLimitRange   = ofDevice("GetPowerManagementLimitConstraints")
	fnEnergy            = ofDevice("GetTotalEnergyConsumption")
	fnClock             = ofDevice("GetClockInfo")
	fnMaxClock          = ofDevice("GetMaxClockInfo")
	fnECC               = ofDevice("GetTotalEccErrors")
	fnClockEvents       = ofDevice("GetCurrentClocksEventReasons")
	fnClockThrottle     = ofDevice("GetCurrentClocksThrottleReasons")
	fnPerformanceState  = ofDevice("GetPerformanceState")
	fnMargin            = ofDevice("GetMarginTemperature")
	fnThreshold         = ofDevice("GetTemperatureThreshold")
	fnMemoryErrors      = ofDevice("GetMemoryErrorCounter")
	fnSRAM              = ofDevice("GetSramEccErrorStatus")
	fnRetiredPages      = ofDevice("GetRetiredPages")
	fnRetirementPending = ofDevice("GetRetiredPagesPendingStatus")
	fnRemappedRows      = ofDevice("GetRemappedRows")
	fnRepair            = ofDevice("GetRepairStatus")
	fnPersistence       = ofDevice("GetPersistenceMode")
	fnECCMode           = ofDevice("GetEccMode")
	fnMIGMode           = ofDevice("GetMigMode")
	fnGSPMode           = ofDevice("GetGspFirmwareMode")
	fnConfidential      = enter("SystemGetConfComputeState", "nvmlSystemGetConfComputeState")
	fnPCIeWidth         = ofDevice("GetCurrPcieLinkWidth")
	fnPCIeWidthMax      = ofDevice("GetMaxPcieLinkWidth")
	fnPCIeGeneration    = ofDevice("GetCurrPcieLinkGeneration")
	fnPCIeGenerationMax = ofDevice("GetMaxPcieLinkGeneration")
	fnNVLinkState       = ofDevice("GetNvLinkState")
	fnFabricV           = ofDevice("GetGpuFabricInfoV")
	fnFabric            = ofDevice("GetGpuFabricInfo")
	fnCompute           = enter("GetComputeRunningProcesses", "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetComputeRunningProcesses")
	fnGraphics          = enter("GetGraphicsRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v2", "nvmlDeviceGetGraphicsRunningProcesses")
	fnMIGCount          = ofDevice("GetMaxMigDeviceCount")
	fnMIGDevice         = ofDevice("GetMigDeviceHandleByIndex")
	fnGPUInstance       = ofDevice("GetGpuInstanceId")
	fnComputeInstance   = ofDevice("GetComputeInstanceId")
	fnEventCreate       = enter("EventSetCreate", "nvmlEventSetCreate")
	fnEventRegister     = ofDevice("RegisterEvents")
	fnEventWait         = enter("EventSetWait", "nvmlEventSetWait_v2", "nvmlEventSetWait")
	fnEventFree         = enter("EventSetFree", "nvmlEventSetFree")
	fnGPMSupport        = enter("GpmQueryDeviceSupport", "nvmlGpmQueryDeviceSupport")
	fnGPMAlloc          = enter("GpmSampleAlloc", "nvmlGpmSampleAlloc")
	fnGPMFree           = enter("GpmSampleFree", "nvmlGpmSampleFree")
	fnGPMSample         = enter("GpmSampleGet", "nvmlGpmSampleGet")
	fnGPMSliceSample    = enter("GpmMigSampleGet", "nvmlGpmMigSampleGet")
	fnGPMMetrics        = enter("GpmMetricsGet", "nvmlGpmMetricsGet")
)

// guarded runs call, which has to be fn's method of go-nvml or fn called
// directly, if the library has a symbol for it. Codes that are an answer where
// the call is made are no failures. A panic, such as go-nvml's over an answer
// that does not fit its question, is one.
func guarded[T any](l *library, fn function, call func() (T, gonvml.Return), answers ...Code) (value T, code Code) {
	if !l.binding.has[fn] {
		return value, FunctionNotFound
	}
	defer func() {
		if recover() != nil {
			var none T
			value, code = none, Panicked
		}
		if code.failure() && l.failure != nil && !slices.Contains(answers, code) {
			l.failure(functions[fn].symbols[0], code)
		}
	}()
	began := time.Now()
	value, ret := call()
	if l.timing != nil && fn != fnEventWait { // which takes long by intention
		l.timing(time.Since(began))
	}
	return value, Code(ret)
}

// binding is the one NVML library of the process. The dynamic linker binds each symbol
// once, and go-nvml keeps its versioned symbols in package variables. So all receivers
// share one go-nvml object: it rewrites those variables only while nothing is
// initialised.
type binding struct {
	path string
	raw  gonvml.Interface
	has  []bool // by function
	// direct are the symbols of the functions that are called directly.
	direct []unsafe.Pointer
	// unversioned: lists of processes are of the first version.
	unversioned bool
	// pin keeps the library mapped after nvmlShutdown: symbols that the linker
	// has bound would otherwise point into nothing.
	pin *dl.DynamicLibrary
}

var process struct {
	sync.Mutex
	binding *binding
}

// bind loads the library, or returns the loaded library.
func bind(path string) (*binding, error) {
	if path == "" {
		path = defaultLibrary
	}
	process.Lock()
	defer process.Unlock()
	if b := process.binding; b != nil {
		if b.path != path {
			return nil, fmt.Errorf("%w: %q, so %q cannot be", ErrOtherLibrary, b.path, path)
		}
		return b, nil
	}

	pin := dl.New(path, dl.RTLD_LAZY|dl.RTLD_GLOBAL)
	if err := pin.Open(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrLibraryNotFound, err)
	}
	b := &binding{path: path, raw: gonvml.New(gonvml.WithLibraryPath(path)), pin: pin, has: make([]bool, len(functions)), direct: make([]unsafe.Pointer, len(functions))}
	for fn, f := range functions {
		for _, symbol := range f.symbols {
			if pin.Lookup(symbol) == nil {
				b.has[fn] = true
				break
			}
		}
	}
	b.look()
	process.binding = b
	return b, nil
}
