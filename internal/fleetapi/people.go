// SPDX-License-Identifier: Apache-2.0

package fleetapi

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/gpu-collector/gpu-collector/internal/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/people"
)

const (
	tagPeople            = "people"
	silencesPath         = "/api/v1/silences"
	acknowledgementsPath = "/api/v1/acknowledgements"
)

// Silenced says that a person wants to be left alone with something.
type Silenced struct {
	ID     string    `json:"id" doc:"Of the silence"`
	Until  time.Time `json:"until"`
	Reason string    `json:"reason"`
	By     string    `json:"by"`
}

// Acknowledged says that a person looks after an episode.
type Acknowledged struct {
	By     string    `json:"by"`
	Reason string    `json:"reason"`
	At     time.Time `json:"at"`
}

// SilencePage is a page of silences.
type SilencePage struct {
	Page
	At       time.Time        `json:"at"`
	Silences []people.Silence `json:"silences"`
}

// AcknowledgementPage is a page of acknowledgements.
type AcknowledgementPage struct {
	Page
	Acknowledgements []people.Acknowledgement `json:"acknowledgements"`
}

// AuditPage is a page of the audit.
type AuditPage struct {
	Page
	Audit []people.Audit `json:"audit"`
}

func (a *API) registerPeople() {
	get(a, "list-silences", silencesPath, tagPeople, "Silences, the newest first; those that are over for a month", a.listSilences)
	get(a, "get-silence", silencesPath+"/{id}", tagPeople, "A silence", a.getSilence, http.StatusNotFound)
	get(a, "list-acknowledgements", acknowledgementsPath, tagPeople, "Who looks after which episode, the newest first", a.listAcknowledgements)
	get(a, "list-audit", "/api/v1/audit", tagPeople, "Each word of a person that was taken or refused, the newest first", a.listAudit)
	write(a, http.MethodPost, "add-silence", silencesPath, tagPeople, "Silence a node, a job or a group until a time: its records carry gpu.silenced, its alerts and the actor stand still, and the verdict stays", http.StatusCreated, a.addSilence)
	write(a, http.MethodDelete, "end-silence", silencesPath+"/{id}", tagPeople, "End a silence before its time", http.StatusOK, a.endSilence)
	write(a, http.MethodPost, "add-acknowledgement", acknowledgementsPath, tagPeople, "Say that somebody looks after an episode", http.StatusCreated, a.addAcknowledgement)
}

type listSilencesInput struct {
	Cluster []string `query:"cluster,explode" maxItems:"100" doc:"Only of these clusters"`
	Active  bool     `query:"active" doc:"Only those that hold now"`
	PageParams
}

func (a *API) listSilences(_ context.Context, in *listSilencesInput) (*SilencePage, error) {
	now := a.o.Now()
	all := a.o.People.Silences(in.Cluster, in.Active, now)
	out := &SilencePage{At: now.UTC(), Silences: derefs(slice(all, &in.PageParams))}
	out.Page = in.page(len(out.Silences), len(all))
	return out, nil
}

// SilenceParam names a silence.
type SilenceParam struct {
	ID string `path:"id" maxLength:"64" doc:"ID of the silence"`
}

func (a *API) getSilence(_ context.Context, in *SilenceParam) (*people.Silence, error) {
	s := a.o.People.Get(in.ID)
	if s == nil {
		return nil, huma.Error404NotFound("no silence " + in.ID + " is known: " + silencesPath + " lists them")
	}
	return s, nil
}

type addSilenceInput struct {
	Body struct {
		Cluster string    `json:"cluster" maxLength:"253"`
		Node    string    `json:"node,omitempty" maxLength:"253" doc:"Give one of node, job_id and group"`
		Job     string    `json:"job_id,omitempty" maxLength:"253"`
		Group   string    `json:"group,omitempty" maxLength:"253"`
		Reason  string    `json:"reason" maxLength:"1024" doc:"Why"`
		Until   time.Time `json:"until" doc:"When it ends, at most a year from now"`
	}
}

func (a *API) addSilence(ctx context.Context, in *addSilenceInput) (*people.Silence, error) {
	b := &in.Body
	return a.o.People.Silence(people.Silence{
		Cluster: b.Cluster, Node: b.Node, Job: b.Job, Group: b.Group, Reason: b.Reason, Until: b.Until.UTC(), By: person(ctx), Source: people.SourceAPI,
	}, a.o.Now())
}

type endSilenceInput struct {
	SilenceParam
	Reason string `query:"reason" maxLength:"1024" doc:"Why"`
}

func (a *API) endSilence(ctx context.Context, in *endSilenceInput) (*people.Silence, error) {
	if _, err := a.getSilence(ctx, &in.SilenceParam); err != nil {
		return nil, err
	}
	return a.o.People.End(in.ID, person(ctx), in.Reason, a.o.Now())
}

type listAcknowledgementsInput struct {
	Cluster []string `query:"cluster,explode" maxItems:"100" doc:"Only of these clusters"`
	PageParams
}

func (a *API) listAcknowledgements(_ context.Context, in *listAcknowledgementsInput) (*AcknowledgementPage, error) {
	all := a.o.People.Acknowledgements(in.Cluster)
	out := &AcknowledgementPage{Acknowledgements: derefs(slice(all, &in.PageParams))}
	out.Page = in.page(len(out.Acknowledgements), len(all))
	return out, nil
}

type addAcknowledgementInput struct {
	Body struct {
		Cluster string `json:"cluster" maxLength:"253"`
		Episode string `json:"episode_id" maxLength:"253"`
		Reason  string `json:"reason" maxLength:"1024" doc:"What is done about it"`
	}
}

func (a *API) addAcknowledgement(ctx context.Context, in *addAcknowledgementInput) (*people.Acknowledgement, error) {
	b := &in.Body
	known := a.o.Store.Episodes(&fleetstate.EpisodeFilter{Clusters: []string{b.Cluster}, IDs: []string{b.Episode}})
	if len(known) == 0 {
		return nil, huma.Error404NotFound("cluster " + b.Cluster + " has no episode " + b.Episode + ": /api/v1/episodes lists them")
	}
	return a.o.People.Acknowledge(people.Acknowledgement{Cluster: b.Cluster, Episode: b.Episode, By: person(ctx), Reason: b.Reason}, a.o.Now())
}

type listAuditInput struct {
	Cluster []string `query:"cluster,explode" maxItems:"100" doc:"Only about these clusters"`
	PageParams
}

func (a *API) listAudit(_ context.Context, in *listAuditInput) (*AuditPage, error) {
	all := a.o.People.Audit(in.Cluster)
	out := &AuditPage{Audit: derefs(slice(all, &in.PageParams))}
	out.Page = in.page(len(out.Audit), len(all))
	return out, nil
}

func derefs[T any](list []*T) []T {
	out := make([]T, len(list))
	for i, v := range list {
		out[i] = *v
	}
	return out
}

// silenced is nil where nobody has silenced it, and in the live stream, whose parts are
// shared for longer than a word takes.
func (c *converter) silenced(of people.Scope) *Silenced {
	if c.people == nil {
		return nil
	}
	return silencedBy(c.people.Silenced(of, c.now))
}

func silencedBy(s *people.Silence) *Silenced {
	if s == nil {
		return nil
	}
	return &Silenced{ID: s.ID, Until: s.Until.UTC(), Reason: s.Reason, By: s.By}
}

func (c *converter) acknowledged(e *fleetstate.Episode) *Acknowledged {
	if c.people == nil {
		return nil
	}
	w := c.people.Acknowledged(e.Cluster, e.ID)
	if w == nil {
		return nil
	}
	return &Acknowledged{By: w.By, Reason: w.Reason, At: w.At.UTC()}
}
