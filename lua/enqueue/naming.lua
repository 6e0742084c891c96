--[[ naming: which of a call's jobs may have the names that they ask for, and which jobs they replace.

A job whose name another one holds is not accepted. But if its kind says `replace`, and the other one waits, was never claimed and holds no name
until an instant, that one leaves, and the new job is in its place. Of several such jobs of one call with one name, the last one is accepted.

A job whose kind says `after` is due so long after the call, so each replacement puts it off, but not beyond what the line of the
replaced one says of the latest. From then on a replacement takes the old job's place in line: else calls that come faster than
workers would put the job off for ever.

The `seldom` list `wanted` has by record the field of `slots` for its name, `digests` and `names` what its digest is made of; `asked`
has who holds each of these fields, `taken` fields and ids of the names that are taken, `replaced` what the event says of each job that
is replaced, `lapsed` the fields whose instant is over, `fronts` by priority the ids and places of
plain jobs that have the place of one that they replaced.

Keys: slots state
Uses: call(now seldom seldom_list) batch(call_many read_many) names(name_field name_mark holder_in) state(read_line) ended(leaves)
    withdrawal(withdraw) deadline(note_coming) digits(digits) ready(return_ready)
]]

--- A record asks for the name that stands behind its digest. False if none stands there.
local function want_name(i, digest)
  local plain, name = digest:match('^(%x+) ([%w_.:~%%/=,-]+)$')
  if not plain then
    return false
  end
  seldom_list('wanted')[i] = name_field(name)
  seldom_list('digests')[i], seldom_list('names')[i] = plain, name
  return true
end

--- Read who holds the names. `kind_at(i)` is the kind of record i, nil if its job is a duplicate.
local function read_holders(size, kind_at)
  local wanted, held_by, fields = seldom.wanted, seldom_list('holders'), {}
  local candidates, last, replaceable = seldom_list('waiting'), seldom_list('last'), {}
  for i = 1, size do
    local field = wanted and wanted[i]
    if field and held_by[field] == nil then
      held_by[field] = false
      fields[#fields + 1] = field
    end
  end
  local held = read_many(slots, fields)
  for i = 1, #fields do
    held_by[fields[i]] = holder_in(held[i], now) or false
    if held[i] and not held_by[fields[i]] then
      seldom_list('lapsed')[fields[i]] = true
    end
  end
  for i = 1, size do
    local field = wanted and wanted[i]
    local kind = field and kind_at(i)
    if kind and kind.unique == 'replace' then
      last[field] = i
      local holder = held_by[field]
      if holder and candidates[holder] == nil then
        candidates[holder] = false
        replaceable[#replaceable + 1] = holder
      end
    end
  end
  local lines = read_many(state, replaceable)
  for i = 1, #replaceable do
    local job = read_line(lines[i])
    if job and not job.claim and (job.state == 'ready' or job.state == 'scheduled') and
      (job.stands or ''):sub(1, 6) ~= 'until:' then
      candidates[replaceable[i]] = job
    end
  end
end

--- Who keeps the name of a record's job from it; nil if it may have the name. `ids` are those of the records.
local function kept_by(i, kind, ids)
  local field = seldom.wanted[i]
  local holder = seldom.holders[field]
  if kind.unique == 'replace' then
    local last = seldom.last[field]
    -- There is none if all records that ask for the name have ids of records before them.
    if last and last ~= i then
      return ids[last]
    elseif last and holder and seldom.waiting[holder] then
      return nil
    end
  end
  return holder or nil
end

--- A record's job is accepted: it takes its name. Returns its digest, its name, and until when that stands, as its line says it; when
--- the job is due, if its kind says `after`; and the id of the job that it replaces, and the place in line that it has from it, if any.
local function take_name(i, id, kind, lane)
  local field, name = seldom.wanted[i], seldom.names[i]
  local old, place = seldom.holders[field] or nil, nil
  local old_job = old and seldom.waiting[old]
  local stands, due_at, held, latest = nil, nil, id, nil
  if kind.after then
    latest = old_job and (old_job.stands or ''):match('^claim:(%d+)$') or digits(now + kind.most)
    stands, due_at = 'claim:' .. latest, math.min(now + kind.after, tonumber(latest))
  elseif kind.window then
    local ends = digits(now + kind.window)
    stands, held = 'until:' .. ends, id .. ' ' .. ends
    note_coming(name_mark(name), ends)
  end
  if seldom.lapsed and seldom.lapsed[field] and not kind.window then
    local untied = seldom_list('untied')
    untied[#untied + 1] = name_mark(name)
  end
  if old then
    if old_job.state == 'ready' and (old_job.lane or '') == lane and (lane ~= '' or latest and tonumber(latest) <= now) then
      place = old_job.seq
      if lane == '' then
        local fronts = seldom_list('fronts')
        fronts[kind.priority] = fronts[kind.priority] or {}
        local front = fronts[kind.priority]
        front[#front + 1] = {id, tonumber(place)}
      end
    end
    leaves(old, old_job)
    withdraw(old, old_job)
    local replaced = seldom_list('replaced')
    replaced[#replaced + 1] = '["' .. old .. '","' .. id .. '"]'
  end
  seldom_list('holders')[field] = id
  local taken = seldom_list('taken')
  taken[#taken + 1], taken[#taken + 2] = field, held
  return seldom.digests[i], name, stands, due_at, old, place
end

--- Write the names, and the plain jobs that have the places of those that they replaced: each goes to the head of its list, since
--- its place is older than those at the tail.
local function write_names()
  call_many('HSET', slots, seldom.taken)
  for priority = 0, seldom.fronts and 3 or -1 do
    return_ready(priority, seldom.fronts[priority] or {})
  end
end
