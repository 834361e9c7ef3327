// SPDX-License-Identifier: Apache-2.0

package verdictactionsexporter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/otlpexporter"
	"go.opentelemetry.io/collector/extension/xextension/storage"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/hostextension"
	"github.com/gpu-collector/gpu-collector/internal/repair"
)

const stateKey, storeTimeout = "repair", 10 * time.Second

// keeper has the state of repair in a storage.
type keeper struct{ client storage.Client }

func (k *keeper) start(ctx context.Context, host component.Host, cfg *Config, owner component.ID) error {
	if cfg.State.StorageID == nil {
		return nil
	}
	extension, err := hostextension.Find[storage.Extension](host, "state::storage", "storage", *cfg.State.StorageID)
	if err != nil {
		return err
	}
	if k.client, err = extension.GetClient(ctx, component.KindExporter, owner, "repair"); err != nil {
		return fmt.Errorf("`state::storage` %q cannot be opened: %w", *cfg.State.StorageID, err)
	}
	return nil
}

func (k *keeper) load(ctx context.Context) ([]byte, error) {
	if k.client == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	return k.client.Get(ctx, stateKey)
}

func (k *keeper) save(ctx context.Context, data []byte) error {
	if k.client == nil {
		return nil
	}
	// Also while the process ends: what was done is to be known.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	return k.client.Set(ctx, stateKey, data)
}

func (k *keeper) stop(ctx context.Context) error {
	if k.client == nil {
		return nil
	}
	return k.client.Close(ctx)
}

// auditor writes the record of each decision to the file, the gateway and the log.
type auditor struct {
	*actor
	file *auditFile
	otlp exporter.Logs
	json plog.JSONMarshaler
}

func (u *auditor) start(ctx context.Context, host component.Host, a *actor) (err error) {
	u.actor = a
	if name := a.cfg.Audit.File; name != "" {
		if u.file, err = openAuditFile(name, int64(a.cfg.Audit.MaxMiB)<<20, a.log); err != nil {
			return fmt.Errorf("`audit::file`: %w", err)
		}
	}
	cfg := a.cfg.Audit.OTLP.Get()
	if cfg == nil {
		return nil
	}
	f := otlpexporter.NewFactory()
	set := a.set
	set.ID = component.NewIDWithName(f.Type(), "audit")
	if u.otlp, err = f.CreateLogs(ctx, set, cfg); err == nil {
		err = u.otlp.Start(ctx, host)
	}
	if err != nil {
		return fmt.Errorf("`audit::otlp_grpc`: %w", errors.Join(err, u.closeFile()))
	}
	return nil
}

func (u *auditor) write(ctx context.Context, records []repair.Record) {
	if len(records) == 0 {
		return
	}
	ctx = context.WithoutCancel(ctx)
	lost := 0
	for i := range records {
		r := &records[i]
		u.telemetry.ExporterVerdictActionsDecisions.Add(ctx, 1, metric.WithAttributes(attribute.String("step", string(r.Step)), attribute.String("outcome", string(r.Outcome))))
		u.log.Info(sentence(r, u.cfg.DryRun), zap.String("id", r.ID))
		if u.file == nil {
			continue
		}
		line, err := u.json.MarshalLogs(logs(records[i:i+1], u.cfg.Cluster, u.set.BuildInfo.Version, u.cfg.DryRun, u.now()))
		if err == nil {
			err = u.file.write(append(line, '\n'))
		}
		if err != nil {
			lost++
			u.log.Error("A decision cannot be written to `audit::file`.", zap.String("id", r.ID), zap.Error(err))
		}
	}
	if u.otlp != nil {
		if err := u.otlp.ConsumeLogs(ctx, logs(records, u.cfg.Cluster, u.set.BuildInfo.Version, u.cfg.DryRun, u.now())); err != nil {
			lost += len(records)
			u.log.Error("Decisions cannot be sent to `audit::otlp_grpc`.", zap.Int("decisions", len(records)), zap.Error(err))
		}
	}
	if lost > 0 {
		u.telemetry.ExporterVerdictActionsAuditDropped.Add(ctx, int64(lost))
	}
}

func (u *auditor) closeFile() error {
	if u.file == nil {
		return nil
	}
	return u.file.close()
}

func (u *auditor) stop(ctx context.Context) error {
	var err error
	if u.otlp != nil {
		err = u.otlp.Shutdown(ctx)
	}
	return errors.Join(err, u.closeFile())
}
