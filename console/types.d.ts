// Made from src/console/openapi.json by console/test/types.mjs. Do not edit.

export interface components {
    schemas: {
        Error: {
            error: {
                code: string;
                message: string;
                hint?: string;
            };
        };
        Revision: "2024-11-05" | "2025-03-26" | "2025-06-18" | "2025-11-25" | "2026-07-28";
        Right: "look" | "bodies" | "act" | "edit";
        ListCounts: {
            tools: number;
            prompts: number;
            resources: number;
            templates: number;
        };
        Quantiles: {
            p50: number | null;
            p99: number | null;
            mean?: number | null;
        };
        Me: {
            operator: string;
            principal: string | null;
            may: components['schemas']['Right'];
            rights: (components['schemas']['Right'])[];
            edit: boolean;
            node: string;
            version: string;
            started: string;
            clustered: boolean;
            recording: components['schemas']['Recording'] | null;
        };
        Recording: {
            on: boolean;
            mode: "off" | "watch" | "always";
            bodies: boolean;
            bodies_until: string | null;
            may_show_bodies: boolean;
            rate: number;
            rate_until?: string | null;
            bytes?: number;
            kept?: number;
        };
        RecordingChange: {
            bodies?: boolean;
            rate?: number;
            for?: string;
        };
        Figures: {
            at: string;
            calls_per_s: number;
            failed: number;
            server_us: components['schemas']['Quantiles'];
            rialto_us: components['schemas']['Quantiles'];
            sessions: number;
            streams: number;
            calls_in_flight: number;
            parked: number;
        };
        Series: {
            from: string;
            step_us: number;
            calls: (number | null)[];
            failed: (number | null)[];
            server_p50_us: (number | null)[];
            server_p99_us: (number | null)[];
            rialto_p50_us: (number | null)[];
            sessions: (number | null)[];
        };
        Pair: {
            client: components['schemas']['Revision'];
            server: string;
            server_revision: components['schemas']['Revision'];
            bridge: "none" | "names" | "era" | "across";
            calls: number;
            share: number;
            words: (string)[];
        };
        AttentionItem: {
            id: string;
            level: "bad" | "warn";
            code: string;
            text: string;
            detail: string | null;
            since: string | null;
            link: string;
            act: {
                label: string;
                verb: "POST" | "DELETE";
                path: string;
            } | null;
            node: string;
        };
        AwayNode: {
            node: string;
            since: string | null;
        };
        Overview: {
            node: string;
            nodes: (string)[];
            at: string;
            range_us: number;
            figures: components['schemas']['Figures'];
            series: components['schemas']['Series'];
            pairs: (components['schemas']['Pair'])[];
            servers: (components['schemas']['ServerRow'])[];
            attention: (components['schemas']['AttentionItem'])[];
            away?: (components['schemas']['AwayNode'])[];
        };
        ServerFigures: {
            calls: number;
            failed: number;
            calls_per_s: number;
            failed_ratio: number;
            server_us: components['schemas']['Quantiles'];
            rialto_us: components['schemas']['Quantiles'];
            series: (number | null)[];
        };
        ServerRow: {
            name: string;
            phase: "starting" | "ready" | "degraded" | "down";
            since: string;
            reason: string | null;
            transport: string;
            target: string;
            revision: components['schemas']['Revision'] | null;
            server: {
                name: string | null;
                version: string | null;
            };
            lists: components['schemas']['ListCounts'];
            list_errors: (string)[];
            leases: number;
            lease_limit: number | null;
            calls_in_flight: number;
            connects: number;
            failed_connects: number;
            groups: (string)[];
            figures: components['schemas']['ServerFigures'];
            login: {
                url: string;
            } | null;
        };
        Leg: {
            revision: components['schemas']['Revision'];
            capabilities: (string)[];
            reaches_client: boolean;
            clients: (components['schemas']['Revision'])[];
            why: string | null;
        };
        CallsByRevision: {
            client: components['schemas']['Revision'];
            server: components['schemas']['Revision'];
            calls: number;
            bridged: (string)[];
        };
        FoundOut: {
            transport: string;
            revision: components['schemas']['Revision'];
            why: string;
            offered: (string)[];
            session: boolean;
            connect_us: number;
            oddities: (string)[];
        };
        ConnectAttempt: {
            at: string;
            ok: boolean;
            reason: string | null;
        };
        ServerCheck: {
            ok: boolean | null;
            what: string;
            detail: string | null;
            hint: string | null;
        };
        Server: {
            name: string;
            phase: "starting" | "ready" | "degraded" | "down";
            since: string;
            reason: string | null;
            transport: string;
            target: string;
            revision: components['schemas']['Revision'] | null;
            server: {
                name: string | null;
                version: string | null;
            };
            lists: components['schemas']['ListCounts'];
            list_errors: (string)[];
            leases: number;
            lease_limit: number | null;
            calls_in_flight: number;
            connects: number;
            failed_connects: number;
            groups: (string)[];
            figures: components['schemas']['ServerFigures'];
            login: {
                url: string;
            } | null;
            legs: (components['schemas']['Leg'])[];
            calls_by_revision: (components['schemas']['CallsByRevision'])[];
            outcomes: Record<string, any>;
            series: components['schemas']['Series'];
            found: components['schemas']['FoundOut'] | null;
            configuration: {
                file: string;
                line: number;
                text: string;
            } | null;
            capabilities: (string)[];
            instructions: string | null;
            attempts: (components['schemas']['ConnectAttempt'])[];
            next_attempt: string | null;
            checks: (components['schemas']['ServerCheck'])[];
        };
        ServerListItem: {
            name: string;
            title: string | null;
            description: string | null;
            entry: Record<string, any>;
            groups: ({
                group: string;
                name: string;
            })[];
            called: number | null;
            changed: boolean;
        };
        LogLine: {
            at: string;
            text: string;
        };
        GroupRow: {
            name: string;
            paths: (string)[];
            stdio: string;
            servers: (string)[];
            naming: "prefix" | "plain";
            lists: components['schemas']['ListCounts'];
            collisions: (string)[];
        };
        GroupEntry: {
            name: string;
            own: string;
            server: string;
            title: string | null;
            description: string | null;
            bytes: number;
            left_out: (string)[] | null;
        };
        WhyStep: {
            ok: boolean | null;
            what: string;
            where: string | null;
        };
        Why: {
            name: string;
            group: string;
            there: boolean;
            steps: (components['schemas']['WhyStep'])[];
        };
        SessionRow: {
            id: string;
            group: string;
            transport: "http" | "sse" | "stdio";
            client: {
                name: string | null;
                version: string | null;
            };
            revision: components['schemas']['Revision'] | null;
            caller: string;
            node: string;
            owner: string;
            streams: number;
            calls: number;
            events: number;
            event_bytes: number;
            idle_us: number;
            expires: string | null;
        };
        SessionStream: {
            number: number;
            kind: "listening" | "call";
            position: string;
            read: string;
            attached: boolean;
            resumed: number;
            resumed_from: string | null;
            resumed_events: number;
            kept: number;
            call: string | null;
        };
        Question: {
            id: string;
            node: string;
            group: string;
            server: string | null;
            method: string;
            kind: string;
            text: string | null;
            client: {
                name: string | null;
                version: string | null;
            };
            revision: components['schemas']['Revision'] | null;
            caller: string;
            how: "request" | "input_required";
            asked: string;
            until: string | null;
            session: string | null;
            call: string | null;
        };
        CallClient: {
            name: string | null;
            version: string | null;
            revision: components['schemas']['Revision'] | null;
            transport: string;
            caller: string;
            session: string | null;
        };
        CallServer: {
            name: string;
            own: string | null;
            revision: components['schemas']['Revision'] | null;
            transport: string;
            leased: boolean;
            process: number | null;
        };
        CallTime: {
            rialto_us: number;
            open_us: number;
            server_us: number;
            client_us: number;
        };
        CallError: {
            code: number | null;
            status: number | null;
            message: string;
        };
        CallRow: {
            id: string;
            at: string;
            node: string;
            group: string | null;
            client: components['schemas']['CallClient'];
            method: string;
            mcp: boolean;
            name: string | null;
            server: components['schemas']['CallServer'] | null;
            bridge: "none" | "names" | "era" | "across";
            rounds: number;
            outcome: string | null;
            error: components['schemas']['CallError'] | null;
            took_us: number | null;
            time: components['schemas']['CallTime'];
            bytes: {
                asked: number;
                answered: number;
            };
            bodies: "whole" | "cut" | "shape" | "none";
            one_of: number;
            request: string | null;
            relayed_to: string | null;
            relayed: boolean;
            kept: boolean;
            done: boolean;
        };
        HttpHead: {
            verb: string | null;
            path: string | null;
            status: number | null;
            headers: ((string)[])[];
        };
        Message: {
            n: number;
            round: number;
            at_us: number;
            wire: "client" | "server";
            way: "in" | "out";
            kind: string;
            http: components['schemas']['HttpHead'] | null;
            bytes: number;
            cut?: boolean;
            kept?: {
                first: number;
                last: number;
            };
            text: string | null;
            hidden: (string)[];
            with?: number | null;
        };
        Change: {
            messages: (number | null)[];
            path: string;
            kind: "changed" | "stays" | "added";
            why: string;
        };
        ReplayRequest: {
            side: "client" | "server";
            as?: components['schemas']['Revision'];
        };
        CallStarted: {
            call: string;
        };
        TryRequest: {
            group?: string;
            server?: string;
            method?: string;
            name?: string;
            arguments?: Record<string, any>;
            params?: Record<string, any>;
            as?: components['schemas']['Revision'];
        };
        TryStarted: {
            call: string | null;
            try: string;
        };
        TryQuestion: {
            id: string;
            method: string;
            params: any;
        };
        TryError: {
            message: string;
            code: number | null;
            data: string | null;
        };
        TryEvent: {
            call: string | null;
            state: "asking" | "cancelled" | "done" | "running";
            try: string;
        };
        TryState: {
            call: string | null;
            state: "running" | "asking" | "done" | "cancelled";
            group: string | null;
            server: string | null;
            method: string;
            name: string | null;
            revision: components['schemas']['Revision'];
            started: string;
            took_us: number;
            questions: (components['schemas']['TryQuestion'])[];
            notifications: (any)[];
            result: string | null;
            error: components['schemas']['TryError'] | null;
            try: string;
        };
        TryAnswer: {
            question: string;
            action?: "accept" | "decline" | "cancel";
            content?: Record<string, any>;
            result?: Record<string, any>;
        };
        ProbeRequest: {
            url?: string;
            server?: string;
            command?: (string)[];
            add?: string;
            name?: string;
        };
        Probe: Record<string, any>;
        BridgeCell: {
            client: components['schemas']['Revision'];
            server: string;
            server_revision: components['schemas']['Revision'] | null;
            words: (string)[];
            calls: number;
        };
        Bridge: {
            revisions: (components['schemas']['Revision'])[];
            servers: (string)[];
            cells: (components['schemas']['BridgeCell'])[];
        };
        Problem: {
            line: number;
            column: number;
            severity: "error" | "warning";
            message: string;
            hint: string | null;
        };
        Reload: {
            at: string;
            outcome: "applied" | "refused";
            added: (string)[];
            changed: (string)[];
            removed: (string)[];
            closed: (string)[];
            settings: (string)[];
            problems: (string)[];
        };
        Config: {
            file: string | null;
            format: "toml" | "json";
            text: string | null;
            etag: string | null;
            problems: (components['schemas']['Problem'])[];
            applied: string | null;
            refused: string | null;
            restart: (string)[];
            reloads: (components['schemas']['Reload'])[];
            editable: boolean;
        };
        ConfigCheck: {
            text?: string;
            add?: string;
            name?: string;
        };
        ConfigChecked: {
            valid: boolean;
            problems: (components['schemas']['Problem'])[];
            settings: (string)[];
            added: (string)[];
            changed: (string)[];
            removed: (string)[];
            restart: (string)[];
            lines: string | null;
            text: string | null;
            difference: string;
            commands: (string)[];
        };
        ConfigWrite: {
            text: string;
        };
        ConfigWritten: {
            file: string;
            etag: string;
            problems: (components['schemas']['Problem'])[];
        };
        Store: {
            address: string;
            connected: boolean;
            full: boolean;
            latency_us: number | null;
        };
        Node: {
            name: string;
            own: boolean;
            state: "here" | "alive" | "away";
            lease_us: number | null;
            version: string | null;
            started: string | null;
            sessions: number | null;
            calls_in_flight: number | null;
            relayed: number | null;
            relaying: number | null;
            adopted: number | null;
            since: string | null;
            relays: ({
                to: string;
                requests: number;
            })[];
            takeovers: ({
                at: string;
                session: string;
                from: string | null;
            })[];
        };
        Reconnecting: {
            server: string;
        };
        Group: {
            name: string;
            paths: (string)[];
            stdio: string;
            servers: (string)[];
            naming: "prefix" | "plain";
            lists: components['schemas']['ListCounts'];
            collisions: (string)[];
            as: components['schemas']['Revision'];
            tools: (components['schemas']['GroupEntry'])[];
            prompts: (components['schemas']['GroupEntry'])[];
            resources: (components['schemas']['GroupEntry'])[];
            templates: (components['schemas']['GroupEntry'])[];
            seen: Record<string, any>;
        };
        Session: {
            id: string;
            group: string;
            transport: "http" | "sse" | "stdio";
            client: {
                name: string | null;
                version: string | null;
            };
            revision: components['schemas']['Revision'] | null;
            caller: string;
            node: string;
            owner: string;
            streams: number;
            calls: number;
            events: number;
            event_bytes: number;
            idle_us: number;
            expires: string | null;
            open_streams: (components['schemas']['SessionStream'])[];
        };
        Call: {
            id: string;
            at: string;
            node: string;
            group: string | null;
            client: components['schemas']['CallClient'];
            method: string;
            mcp: boolean;
            name: string | null;
            server: components['schemas']['CallServer'] | null;
            bridge: "none" | "names" | "era" | "across";
            rounds: number;
            outcome: string | null;
            error: components['schemas']['CallError'] | null;
            took_us: number | null;
            time: components['schemas']['CallTime'];
            bytes: {
                asked: number;
                answered: number;
            };
            bodies: "whole" | "cut" | "shape" | "none";
            one_of: number;
            request: string | null;
            relayed_to: string | null;
            relayed: boolean;
            kept: boolean;
            done: boolean;
            requests: (string)[];
            trace: string | null;
            owner: string;
            omitted?: number;
            messages: (components['schemas']['Message'])[];
            changes: (components['schemas']['Change'])[];
            translated: (string)[];
        };
        ServerRowPage: {
            items: (components['schemas']['ServerRow'])[];
            next: string | null;
        };
        ServerListItemPage: {
            items: (components['schemas']['ServerListItem'])[];
            next: string | null;
        };
        LogLinePage: {
            items: (components['schemas']['LogLine'])[];
            next: string | null;
        };
        GroupRowPage: {
            items: (components['schemas']['GroupRow'])[];
            next: string | null;
        };
        SessionRowPage: {
            items: (components['schemas']['SessionRow'])[];
            next: string | null;
            away?: (components['schemas']['AwayNode'])[];
        };
        QuestionPage: {
            items: (components['schemas']['Question'])[];
            next: string | null;
            away?: (components['schemas']['AwayNode'])[];
        };
        CallRowPage: {
            items: (components['schemas']['CallRow'])[];
            next: string | null;
            away?: (components['schemas']['AwayNode'])[];
        };
        NodePage: {
            items: (components['schemas']['Node'])[];
            next: string | null;
            store: components['schemas']['Store'] | null;
        };
    };
}
