--[[ name_requests: decides which jobs of a call get the names that they ask for, and which jobs they replace.

A job whose name another job holds is not accepted, except if its kind says `replace`, and the other job waits, was
never claimed and holds no name until an instant. Then the other job is removed, and the new job takes its place. If
several such jobs of one call have one name, the last one that is sure to be accepted gets the name: one whose id no
other job has had, and that no rule of a full scope may keep out. The others count as held by that job. A job that this
call replaces leaves its id to later records, unless the id is remembered.

A kind with `after` delays its job by that time from the call, so each replacement postpones the job, but not beyond the
latest instant in the line of the replaced job. From then on a replacement takes the old job's place in line. Otherwise
calls that come faster than workers claim would postpone the job for ever.

A job that waits past its deadline does not keep its name from another job (see include/names/name_overdue).

The lists: `wanted` has, by record, the field of `slots` for its name; `digests` and `names` have the two parts of its
digest. `holders` has, by such a field, the holder of the name; `waiting` the jobs that may be replaced, by id; `taken`
the fields and ids of names that are taken; `replaced` the event's part about each replaced job; `lapsed` the fields
whose instant is over; `overdue`, by field, the ids and records of jobs that yield the name; `last` the record that gets
a field among those that replace; `deferred` the fields for which a record has given way to that one; `fronts`, by
priority, the ids and places of plain jobs that take the place of a replaced job.

Keys: slots state
Lists: deferred digests fronts holders lapsed last names overdue replaced taken waiting wanted
Uses: call(now now_text) parts(list_of) batch(call_many read_many) names(name_field name_mark holder_in)
    state(read_line) removal(end_job) unqueue(unqueue) deadline(note_coming note_over) digits(digits)
    ready(return_ready) idempotency(note_replaced leave_id has_left) emit(emit) name_overdue(is_yielding yield_name)
]]

local lists = {}

--- Note the name that a record asks for, which follows its digest. Returns false without one.
local function want_name(i, digest)
  local plain, name = digest:match('^(%x+) ([%w_.:~%%/=,-]+)$')
  if not plain then
    return false
  end
  list_of(lists, 'wanted')[i] = name_field(name)
  list_of(lists, 'digests')[i], list_of(lists, 'names')[i] = plain, name
  return true
end

--- Read the holders of the names that are asked for. Returns the jobs that hold a name without an instant, and their
--- names, by job.
local function read_names(size)
  local wanted, held_by, fields, names = lists.wanted, list_of(lists, 'holders'), {}, {}
  local lasting, name_of = {}, {}
  for i = 1, size do
    local field = wanted[i]
    if field and held_by[field] == nil then
      held_by[field] = false
      fields[#fields + 1], names[#names + 1] = field, lists.names[i]
    end
  end
  local held = read_many(slots, fields)
  for i = 1, #fields do
    local field, holder = fields[i], holder_in(held[i], now)
    if holder == held[i] and has_left(holder) then
      holder = nil   -- it has just expired in this call
    end
    held_by[field] = holder or false
    if holder and holder == held[i] then
      lasting[#lasting + 1] = holder
      name_of[holder] = names[i]
    elseif held[i] and not holder then
      list_of(lists, 'lapsed')[field] = true
    end
  end
  return lasting, name_of
end

--- Read the holders of the names, and find the jobs that may be replaced. `kind_if_sure(i)` returns the kind of record
--- i; nil if another job may have its id.
local function read_holders(size, kind_if_sure)
  local wanted = lists.wanted
  if not wanted then
    return
  end
  local candidates, last, held_by = list_of(lists, 'waiting'), list_of(lists, 'last'), list_of(lists, 'holders')
  local ids, name_of = read_names(size)
  local lines = read_many(state, ids)
  for i = 1, #ids do
    local holder, job = ids[i], read_line(lines[i])
    if is_yielding(job, name_of[holder]) then
      local field = name_field(job.unique)
      list_of(lists, 'overdue')[field] = {holder, job}
      held_by[field] = false
    elseif job and not job.claim and (job.state == 'ready' or job.state == 'scheduled') then
      candidates[holder] = job
    end
  end
  for i = 1, size do
    local kind = wanted[i] and kind_if_sure(i)
    if kind and kind.unique == 'replace' and kind.full == '' then
      last[wanted[i]] = i
    end
  end
end

--- Return the job that keeps the name from a record's job; nil if the record's job may have the name. `ids` are the ids
--- of the records.
local function kept_by(i, kind, ids)
  local field = lists.wanted[i]
  local holder, last = lists.holders[field], lists.last[field]
  local replaces = kind.unique == 'replace'
  local is_before = last and last > i
  if is_before and lists.deferred and lists.deferred[field] then
    return ids[last]
  elseif holder and not (replaces and lists.waiting[holder]) then
    return holder
  elseif replaces and is_before then
    list_of(lists, 'deferred')[field] = true
    return ids[last]
  end
  return nil
end

--- Give an accepted job its name. Returns its digest, its name, and how long it holds the name, as its line has it; its
--- due time, if its kind has `after`; the id of the job that it replaces; and the place in line that it takes from that
--- job, if any.
local function take_name(i, id, kind, lane)
  local field, name = lists.wanted[i], lists.names[i]
  local old, place = lists.holders[field] or nil, nil
  local old_job = old and lists.waiting[old]
  local stands, due_at, held, latest = nil, nil, id, nil
  if kind.after then
    latest = old_job and (old_job.stands or ''):match('^claim:(%d+)$') or digits(now + kind.most)
    stands, due_at = 'claim:' .. latest, math.min(now + kind.after, tonumber(latest))
  elseif kind.window then
    local ends = digits(now + kind.window)
    stands, held = 'until:' .. ends, id .. ' ' .. ends
    note_coming(name_mark(name), ends)
  end
  if lists.lapsed and lists.lapsed[field] and not kind.window then
    note_over(name_mark(name))
  end
  local overdue = lists.overdue and lists.overdue[field]
  if overdue then
    yield_name(overdue[1], overdue[2])
    list_of(lists, 'overdue')[field] = nil
  end
  if old then
    if old_job.state == 'ready' and (old_job.lane or '') == lane and (lane ~= '' or latest and tonumber(latest) <= now) then
      place = old_job.seq
      if lane == '' then
        local fronts = list_of(lists, 'fronts')
        fronts[kind.priority] = fronts[kind.priority] or {}
        local front = fronts[kind.priority]
        front[#front + 1] = {id, tonumber(place)}
      end
    end
    end_job(old, old_job)
    unqueue(old, old_job)
    local replaced = list_of(lists, 'replaced')
    replaced[#replaced + 1] = '["' .. old .. '","' .. id .. '"]'
    leave_id(old)
    list_of(lists, 'waiting')[old] = nil   -- a later record may add another job of this id
    note_replaced(old, old_job, id)
  end
  list_of(lists, 'holders')[field] = id
  local taken = list_of(lists, 'taken')
  taken[#taken + 1], taken[#taken + 2] = field, held
  return lists.digests[i], name, stands, due_at, old, place
end

local function append(actor)
  emit('replaced', now_text, actor, lists.replaced)
end

--- Write the names, and the plain jobs that take the place of a replaced job. Such a job is put at the head of its
--- list, since its place is older than those at the tail.
local function write()
  call_many('HSET', slots, lists.taken)
  for priority = 0, lists.fronts and 3 or -1 do
    return_ready(priority, lists.fronts[priority] or {})
  end
end
